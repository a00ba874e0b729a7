// Everything at a glance: users and their containers, and the last hour of calls.
import { h, list, ms, theirs, clock } from "./dom.js";
import { lines, minutes } from "./chart.js";
import { running, store, users, watch } from "./store.js";

const ways = ["warm", "frozen", "pooled", "cold"];

const percentile = (sorted, p) => (sorted.length ? sorted[Math.min(Math.floor(sorted.length * p), sorted.length - 1)] : null);

// hour is the calls of the last hour, by minute.
function hour() {
  const now = Date.now(), n = 60;
  const counts = Array(n).fill(0), refused = Array(n).fill(0);
  const totals = Object.fromEntries(ways.map((w) => [w, Array.from({ length: n }, () => [])]));
  const starts = Object.fromEntries(ways.map((w) => [w, []]));
  const ends = Object.fromEntries(ways.map((w) => [w, []]));
  for (const c of store.calls.values()) {
    const minute = n - 1 - Math.floor((now - c.at) / 60000);
    if (c.phase !== "ended" || minute < 0 || minute >= n) continue;
    counts[minute]++;
    if (c.outcome === "refused") refused[minute]++;
    if (!c.way) continue;
    totals[c.way][minute].push(c.totalMs);
    starts[c.way].push(c.startMs);
    ends[c.way].push(c.totalMs);
  }
  const sort = (list) => list.sort((a, b) => a - b);
  return { counts, refused, totals, starts, ends, sort };
}

export function overview(main) {
  const tiles = h("dl.tiles");
  const rate = h("div"), times = h("div"), table = h("tbody");
  const people = list("Users", [
    ["User", "minmax(8rem, 2fr)", (u) => h("a", { href: "#/user/" + encodeURIComponent(u.id) }, theirs(u.id, 63))],
    ["Sandboxes", "5rem", (u) => u.sandboxes],
    ["Containers", "minmax(9rem, 2fr)", (u) => states(u.containers)],
    ["Commands", "6rem", (u) => u.running],
    ["Refused names", "7rem", (u) => u.denied],
    ["Last call", "6rem", (u) => (u.last ? clock(u.last) : "–")],
  ]);
  main.append(h("h1", null, "Overview"), tiles, h("section.card", null, h("h2", null, "Users"), people.el),
    h("div.columns", null,
      h("section.card", null, h("h2", null, "Calls a minute, last hour"), rate, h("p.dim", null, "Refused ones in red. As far as the service keeps them: the last 4096 calls.")),
      h("section.card", null, h("h2", null, "Time to the end, p50 and p95 (dashed)"), times,
        h("ul.key", null, ways.map((w, i) => h("li", { class: "s" + (i + 1) }, "■ " + w))))),
    h("section.card", null, h("h2", null, "Times by how the container came"), h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Times" },
      h("table", null, h("thead", null, h("tr", null, ["Container", "Calls", "Start p50", "Start p95", "End p50", "End p95"].map((t) => h("th", { scope: "col" }, t)))), table))));
  return watch(() => {
    const all = users(), at = hour();
    const containers = [...store.containers.values()];
    const of = (state) => containers.filter((c) => shown(c) === state).length;
    const recent = [...store.calls.values()].filter((c) => c.phase === "ended" && Date.now() - c.at < 10000).length / 10;
    tiles.replaceChildren(...[["Users", all.length], ["Containers", containers.length], ["Running", of("busy")], ["Idle", of("idle")], ["Frozen", of("frozen")],
      ["Commands", all.reduce((n, u) => n + u.running, 0)], ["Calls a second", recent.toFixed(1)], ["Refused, last hour", at.refused.reduce((a, b) => a + b, 0)]]
      .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
    people.set(all);
    rate.replaceChildren(minutes(`Calls a minute over the last hour; ${at.counts.at(-1)} in this minute`, at.counts, at.refused, (v) => v.toFixed(0)));
    const series = ways.flatMap((w, i) => [0.5, 0.95].map((p) => [w, "s" + (i + 1), at.totals[w].map((l) => percentile(at.sort(l), p)), p > 0.5]));
    times.replaceChildren(lines("Time to the end of calls over the last hour, by how the container came", series, ms));
    table.replaceChildren(...ways.map((w) => {
      const s = at.sort(at.starts[w]), e = at.sort(at.ends[w]);
      const cell = (l, p) => h("td", null, l.length ? ms(percentile(l, p)) : "–");
      return h("tr", null, h("th", { scope: "row" }, w), h("td", null, e.length), cell(s, 0.5), cell(s, 0.95), cell(e, 0.5), cell(e, 0.95));
    }));
  });
}

// shown is a container's state by what is known now.
export function shown(c) {
  if (c.state === "starting" || c.state === "frozen") return c.state;
  return running(c.name) > 0 ? "busy" : "idle";
}

function states(containers) {
  const counts = {};
  for (const c of containers) counts[shown(c)] = (counts[shown(c)] ?? 0) + 1;
  return Object.entries(counts).map(([s, n]) => `${n} ${s}`).join(", ") || "–";
}
