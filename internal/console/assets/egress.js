// What calls tried to reach: live, grouped, with the way to allow what was denied.
import { clock, h, list, theirs } from "./dom.js";
import { flow } from "./chart.js";
import { allDecisions, store, watch } from "./store.js";

const notAllowed = "the name is not allowed for this call";

// remedy returns the flag that would allow a name.
export function remedy(d) {
  if (d.verdict !== "denied" || d.reason !== notAllowed || !/^[a-z0-9_-]+(\.[a-z0-9_-]+)+$/.test(d.name)) return "";
  return "--allow-domain " + d.name;
}

// group groups decisions. They are sorted latest first, and so are the groups.
function group(decisions, by) {
  const groups = new Map();
  for (const d of decisions) {
    const k = by === "each" ? d.each : `${by === "name" ? d.name : d.userId}\u0000${d.verdict}\u0000${d.reason}`;
    let g = groups.get(k);
    if (!g) groups.set(k, (g = { latest: d, count: 0, others: by === "each" ? null : new Set() }));
    g.count += d.count;
    g.others?.add(by === "name" ? d.userId : d.name);
  }
  return [...groups.values()];
}

export function egress(main) {
  let by = "each", text = "", verdict = "", held = null, pictured = "", picturedAt = -Infinity;
  const input = h("input", { type: "search", id: "filter", oninput: (e) => { text = e.target.value.toLowerCase(); draw(true); } });
  const select = (id, options, set) => h("select", { id, onchange: (e) => { set(e.target.value); draw(true); } }, options.map(([value, name]) => h("option", { value }, name)));
  const pause = h("button", { type: "button", onclick: () => { held = held ? null : { list: [...store.decisions.values()].reverse(), at: Date.now() }; draw(true); } });
  const count = h("p.dim", { role: "status" });
  const rows = list("Decisions", [
    ["Time", "4.5rem", (g) => clock(g.latest.at)],
    ["Verdict", "4.5rem", (g) => g.latest.verdict, (g) => h("span", { class: g.latest.verdict === "allowed" ? "good" : "bad" }, g.latest.verdict)],
    ["User", "minmax(6rem, 1fr)", (g) => (by === "name" ? g.others.size + " users" : g.latest.userId || "–"),
      (g) => (by !== "name" && g.latest.userId ? h("a", { href: "#/user/" + encodeURIComponent(g.latest.userId) }, theirs(g.latest.userId, 63)) : by === "name" ? g.others.size + " users" : "–")],
    ["Name", "minmax(10rem, 3fr)", (g) => (by === "user" ? g.others.size + " names" : g.latest.name || "–"), (g) => h("code", null, by === "user" ? g.others.size + " names" : theirs(g.latest.name || "–"))],
    ["Count", "3rem", (g) => g.count],
    ["Reason", "minmax(10rem, 3fr)", (g) => g.latest.reason, (g) => theirs(g.latest.reason)],
    ["Flag to allow it", "minmax(12rem, 5fr)", (g) => (by === "user" ? "" : remedy(g.latest)), (g) => h("code", null, by === "user" ? "" : remedy(g.latest))],
  ]);
  const picture = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "From users to names" });
  main.append(h("h1", null, "Egress"), h("div.bar", null, h("label", null, "Filter", input),
    h("label", null, "Verdict", select("verdict", [["", "all"], ["allowed", "allowed"], ["denied", "denied"], ["failed", "failed"], ["limited", "limited"], ["malformed", "malformed"]], (v) => { verdict = v; })),
    h("label", null, "Grouped by", select("by", [["each", "user and name"], ["name", "name"], ["user", "user"]], (v) => { by = v; })), pause),
  count, h("section.card", null, rows.el, h("p.dim", null, "The flag is for “sandbox exec”; in the API, add the name to ", h("code", null, "allowedDomains"), ", with the tag ", h("code", null, "@network"), ".")), h("section.card", null, h("h2", null, "From users to names, the last ten minutes"), picture));
  // draw draws the list, and the picture too if the user has changed a choice, or now and then: it is costly, and hardly changes.
  function draw(chosen) {
    const now = held ? held.list : [...store.decisions.values()].reverse();
    const all = verdict || text ? now.filter((d) => (!verdict || d.verdict === verdict) && (!text || d.text.includes(text))) : now;
    let later = 0;
    if (held) for (const d of store.decisions.values()) if (d.at > held.at) later++;
    pause.textContent = held ? `Go on (${later} new)` : "Pause";
    count.textContent = `${all.length} of ${now.length} decisions${held ? ", paused" : ""}`;
    rows.set(group(all, by));
    if (!chosen && performance.now() - picturedAt < 5000) return;
    const links = new Map(), since = Date.now() - 600000;
    for (const d of all) {
      if (d.at < since) break;
      let l = links.get(d.flow);
      if (!l) links.set(d.flow, (l = [d.userId || "nobody known", d.name || "no name", 0, d.verdict !== "allowed"]));
      l[2] += d.count;
    }
    const top = [...links.values()].sort((a, b) => b[2] - a[2]).slice(0, 24), drawn = JSON.stringify(top);
    if (top.length) picturedAt = performance.now();
    if (drawn === pictured) return;
    pictured = drawn;
    picture.replaceChildren(top.length ? flow("From users to the names that they asked for: allowed in green, refused in red", top) : h("p.dim", null, "Nobody has asked for a name."));
  }
  allDecisions();
  return watch(draw);
}
