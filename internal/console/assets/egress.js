// What calls wanted to reach: live, grouped, with the way to allow what was not.
import { clock, h, list, theirs } from "./dom.js";
import { flow } from "./chart.js";
import { allDecisions, store, watch } from "./store.js";

const notAllowed = "the name is not allowed for this call";

// remedy is the flag and the field that would allow a name.
export function remedy(d) {
  if (d.verdict !== "denied" || d.reason !== notAllowed || !/^[a-z0-9_-]+(\.[a-z0-9_-]+)+$/.test(d.name)) return "";
  return `--allow-domain ${d.name}, or "allowedDomains": ["${d.name}"]`;
}

// group brings decisions together, which are the latest first, and so are the groups.
function group(decisions, by) {
  const groups = new Map();
  for (const d of decisions) {
    const k = by === "each" ? d.each : `${by === "name" ? d.name : d.userId}\u0000${d.verdict}\u0000${d.reason}`;
    let g = groups.get(k);
    if (!g) groups.set(k, (g = { ...d, count: 0, others: by === "each" ? null : new Set() }));
    g.count += d.count;
    g.others?.add(by === "name" ? d.userId : d.name);
  }
  return [...groups.values()];
}

export function egress(main) {
  let by = "each", text = "", verdict = "", held = null, pictured = "";
  const input = h("input", { type: "search", id: "filter", oninput: (e) => { text = e.target.value.toLowerCase(); draw(); } });
  const select = (id, options, set) => h("select", { id, onchange: (e) => { set(e.target.value); draw(); } }, options.map(([value, name]) => h("option", { value }, name)));
  const pause = h("button", { type: "button", onclick: () => { held = held ? null : { list: [...store.decisions.values()].reverse(), at: Date.now() }; draw(); } });
  const count = h("p.dim", { role: "status" });
  const rows = list("Decisions", [
    ["Time", "6rem", (d) => clock(d.time)],
    ["User", "minmax(6rem, 1fr)", (d) => (by === "name" ? d.others.size + " users" : d.userId || "–"),
      (d) => (by !== "name" && d.userId ? h("a", { href: "#/user/" + encodeURIComponent(d.userId) }, theirs(d.userId, 63)) : by === "name" ? d.others.size + " users" : "–")],
    ["Name", "minmax(10rem, 2fr)", (d) => (by === "user" ? d.others.size + " names" : d.name || "–"), (d) => h("code", null, by === "user" ? d.others.size + " names" : theirs(d.name || "–"))],
    ["Verdict", "5rem", (d) => d.verdict, (d) => h("span", { class: d.verdict === "allowed" ? "good" : "bad" }, d.verdict)],
    ["Count", "4rem", (d) => d.count],
    ["Reason", "minmax(10rem, 2fr)", (d) => d.reason, (d) => theirs(d.reason)],
    ["What would allow it", "minmax(12rem, 3fr)", (d) => (by === "user" ? "" : remedy(d)), (d) => h("code", null, by === "user" ? "" : remedy(d))],
  ]);
  const picture = h("div");
  main.append(h("h1", null, "Egress"), h("div.bar", null, h("label", null, "Filter", input),
    h("label", null, "Verdict", select("verdict", [["", "all"], ["allowed", "allowed"], ["denied", "denied"], ["failed", "failed"], ["limited", "limited"], ["malformed", "malformed"]], (v) => { verdict = v; })),
    h("label", null, "Grouped by", select("by", [["each", "user and name"], ["name", "name"], ["user", "user"]], (v) => { by = v; })), pause),
  count, h("section.card", null, rows.el), h("section.card", null, h("h2", null, "From users to names, the last ten minutes"), picture));
  function draw() {
    const now = held ? held.list : [...store.decisions.values()].reverse();
    const all = verdict || text ? now.filter((d) => (!verdict || d.verdict === verdict) && (!text || d.text.includes(text))) : now;
    let later = 0;
    if (held) for (const d of store.decisions.values()) if (d.at > held.at) later++;
    pause.textContent = held ? `Go on (${later} new)` : "Pause";
    count.textContent = `${all.length} of ${now.length} decisions${held ? ", paused" : ""}`;
    rows.set(group(all, by));
    const links = new Map(), since = Date.now() - 600000;
    for (const d of all) {
      if (d.at < since) break;
      const denied = d.verdict !== "allowed", k = `${d.userId}\u0000${d.name}\u0000${denied}`;
      let l = links.get(k);
      if (!l) links.set(k, (l = [d.userId || "nobody known", d.name || "no name", 0, denied]));
      l[2] += d.count;
    }
    const top = [...links.values()].sort((a, b) => b[2] - a[2]).slice(0, 24), drawn = JSON.stringify(top);
    if (drawn === pictured) return;
    pictured = drawn;
    picture.replaceChildren(top.length ? flow("From users to the names that they asked for: allowed in green, refused in red", top) : h("p.dim", null, "Nobody has asked for a name."));
  }
  allDecisions();
  return watch(draw);
}
