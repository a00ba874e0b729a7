// What calls wanted to reach: live, grouped, with the way to allow what was not.
import { clock, h, list, theirs } from "./dom.js";
import { flow } from "./chart.js";
import { store, watch } from "./store.js";

const notAllowed = "the name is not allowed for this call";

// remedy is the flag and the field that would allow a name.
export function remedy(d) {
  if (d.verdict !== "denied" || d.reason !== notAllowed || !/^[a-z0-9_-]+(\.[a-z0-9_-]+)+$/.test(d.name)) return "";
  return `--allow-domain ${d.name}, or "allowedDomains": ["${d.name}"]`;
}

function group(decisions, by) {
  const groups = new Map();
  for (const d of decisions) {
    const k = JSON.stringify([by === "name" ? d.name : d.userId, by === "each" ? [d.name, d.container, d.via] : 0, d.verdict, d.reason]);
    const g = groups.get(k) ?? { ...d, count: 0, others: new Set() };
    g.count += d.count;
    g.others.add(by === "name" ? d.userId : d.name);
    g.time = g.time > d.time ? g.time : d.time;
    groups.set(k, g);
  }
  return [...groups.values()].sort((a, b) => (a.time < b.time ? 1 : -1));
}

export function egress(main) {
  let by = "each", text = "", verdict = "", held = null;
  const input = h("input", { type: "search", id: "filter", oninput: (e) => { text = e.target.value.toLowerCase(); draw(); } });
  const select = (id, options, set) => h("select", { id, onchange: (e) => { set(e.target.value); draw(); } }, options.map(([value, name]) => h("option", { value }, name)));
  const pause = h("button", { type: "button", onclick: () => { held = held ? null : { list: [...store.decisions.values()], at: Date.now() }; draw(); } });
  const count = h("p.dim", { role: "status" });
  const rows = list("Decisions", [
    ["Time", "6rem", (d) => clock(d.time)],
    ["User", "minmax(6rem, 1fr)", (d) => (by === "name" ? d.others.size + " users" : d.userId ? h("a", { href: "#/user/" + encodeURIComponent(d.userId) }, theirs(d.userId, 63)) : "–")],
    ["Name", "minmax(10rem, 2fr)", (d) => h("code", null, by === "user" ? d.others.size + " names" : theirs(d.name || "–"))],
    ["Verdict", "6rem", (d) => h("span", { class: d.verdict === "allowed" ? "good" : "bad" }, d.verdict)],
    ["Count", "4rem", (d) => d.count],
    ["Reason", "minmax(10rem, 2fr)", (d) => theirs(d.reason)],
    ["What would allow it", "minmax(12rem, 3fr)", (d) => (by === "user" ? "" : h("code", null, remedy(d)))],
  ]);
  const picture = h("div");
  main.append(h("h1", null, "Egress"), h("div.bar", null, h("label", null, "Filter", input),
    h("label", null, "Verdict", select("verdict", [["", "all"], ["allowed", "allowed"], ["denied", "denied"], ["failed", "failed"], ["limited", "limited"], ["malformed", "malformed"]], (v) => { verdict = v; })),
    h("label", null, "Grouped by", select("by", [["each", "user and name"], ["name", "name"], ["user", "user"]], (v) => { by = v; })), pause),
  count, h("section.card", null, rows.el), h("section.card", null, h("h2", null, "From users to names, the last ten minutes"), picture));
  function draw() {
    const now = [...store.decisions.values()];
    const all = (held?.list ?? now).filter((d) => (!verdict || d.verdict === verdict) && (!text || `${d.userId} ${d.name} ${d.reason} ${d.container}`.toLowerCase().includes(text)));
    const later = held ? now.filter((d) => Date.parse(d.time) > held.at).length : 0;
    pause.textContent = held ? `Go on (${later} new)` : "Pause";
    count.textContent = `${all.length} of ${(held?.list ?? now).length} decisions${held ? ", paused" : ""}`;
    rows.set(group(all, by));
    const links = new Map();
    for (const d of all) {
      if (Date.now() - Date.parse(d.time) > 600000) continue;
      const denied = d.verdict !== "allowed", k = JSON.stringify([d.userId, d.name, denied]);
      const l = links.get(k) ?? [d.userId || "nobody known", d.name || "no name", 0, denied];
      l[2] += d.count;
      links.set(k, l);
    }
    const top = [...links.values()].sort((a, b) => b[2] - a[2]).slice(0, 24);
    picture.replaceChildren(top.length ? flow("From users to the names that they asked for: allowed in green, refused in red", top) : h("p.dim", null, "Nobody has asked for a name."));
  }
  return watch(draw);
}
