// Everything at a glance: users and their containers, and the last hour of calls.
import { bytes, clock, cores, h, list, ms, theirs } from "./dom.js";
import { lines, minutes } from "./chart.js";
import { loops, running, runs, store, taking, users, watch } from "./store.js";

const ways = ["warm", "frozen", "pooled", "cold"];
const ends = [["Start", "start"], ["First byte", "firstByte"], ["End", "end"]];

export function overview(main) {
  const tiles = h("dl.tiles");
  const values = ["Users", "Containers", "Starting", "Running", "Idle", "Frozen", "Pooled", "Processors", "Memory", "Commands", "Processes", "Crash-looping", "Calls / s", "Refused, 1 h"].map((name) => {
    const value = h("dd", null, "–");
    tiles.append(h("div", null, h("dt", null, name), value));
    return value;
  });
  const rate = h("div"), times = h("div"), table = h("tbody");
  const people = list("Users", [
    ["User", "minmax(8rem, 2fr)", (u) => u.id, (u) => h("a", { href: "#/user/" + encodeURIComponent(u.id) }, theirs(u.id, 63))],
    ["Sandboxes", "5rem", (u) => u.sandboxes],
    ["Containers", "minmax(9rem, 2fr)", (u) => states(u.containers)],
    ["Processors", "5.5rem", (u) => cores(u.cores)],
    ["Memory", "5rem", (u) => bytes(u.memory)],
    ["Commands", "5.5rem", (u) => u.running],
    ["Processes", "minmax(12rem, 1fr)", (u) => durable(u.processes), (u) => h("span", { class: u.processes.some(loops) ? "bad" : null }, durable(u.processes))],
    ["Refused names", "7rem", (u) => u.denied],
    ["Last call", "5rem", (u) => (u.last ? clock(u.last) : "–")],
  ]);
  const heads = ["Container", "Calls", ...ends.flatMap(([name]) => [name + " p50", name + " p95"])];
  let text = "";
  const search = h("input", { type: "search", id: "search", oninput: (e) => { text = e.target.value.trim().toLowerCase(); find(); } });
  const count = h("span.dim", { role: "status" });
  const find = () => {
    const all = users(), found = text ? all.filter((u) => u.id.includes(text)) : all;
    count.textContent = text ? `${found.length} of ${all.length} users` : "";
    people.set(found);
    return all;
  };
  main.append(h("h1", null, "Overview"), tiles, h("section.card", null, h("h2", null, "Users"), h("div.bar", null, h("label", null, "Search users", search), count), people.el),
    h("div.columns.even", null,
      h("section.card", null, h("h2", null, "Calls a minute, last hour"), rate, h("p.dim", null, "Refused ones in red.")),
      h("section.card", null, h("h2", null, "Time to the end, p50 and p95 (dashed)"), times,
        h("ul.key", null, ways.map((w, i) => h("li", { class: "s" + (i + 1) }, "■ " + w))))),
    h("section.card", null, h("h2", null, "Times of the last hour, by how the call got its container"), h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Times" },
      h("table.numbers", null, h("thead", null, h("tr", null, heads.map((t) => h("th", { scope: "col" }, t)))), table))));
  let drawn = null;
  return watch(() => {
    const all = find(), containers = [...store.containers.values(), ...(store.pooled?.values() ?? [])], counts = { starting: 0, busy: 0, idle: 0, frozen: 0, pooled: 0 };
    for (const c of containers) counts[shown(c)]++;
    values[6].parentNode.hidden = !store.pooled;
    const [used, memory] = taking(containers), now = Date.now();
    let recent = 0;
    for (const c of store.calls.values()) if (c.phase === "ended" && now - c.at < 10000) recent++;
    const looping = store.processes.filter(loops).length;
    values[11].className = looping ? "bad" : "";
    [all.length, containers.length, counts.starting, counts.busy, counts.idle, counts.frozen, counts.pooled, cores(used), bytes(memory), all.reduce((n, u) => n + u.running, 0), store.processes.filter(runs).length, looping, (recent / 10).toFixed(1), store.hour?.hour.refused ?? "–"]
      .forEach((value, i) => { if (values[i].textContent !== String(value)) values[i].textContent = value; });
    if (!store.hour || store.hour === drawn) return;
    drawn = store.hour;
    pictures(drawn);
  });

  function pictures(hour) {
    const counts = hour.minutes.map((m) => m.calls), of = (m, way) => m.ways.find((w) => w.way === way);
    rate.replaceChildren(minutes(`Calls a minute over the last hour; ${counts.at(-1)} in this minute`, counts, hour.minutes.map((m) => m.refused), (v) => v.toFixed(0)));
    const series = ways.flatMap((way, i) => ["p50Ms", "p95Ms"].map((p) => [way, "s" + (i + 1), hour.minutes.map((m) => of(m, way)?.end[p] ?? null), p === "p95Ms"]));
    times.replaceChildren(lines("Time to the end of calls over the last hour, by how the call got its container", series, ms));
    table.replaceChildren(...ways.map((way) => {
      const t = of(hour.hour, way);
      return h("tr", null, h("th", { scope: "row" }, way), h("td", null, t?.calls ?? 0), ends.flatMap(([, end]) => ["p50Ms", "p95Ms"].map((p) => h("td", null, t?.[end][p] ? ms(t[end][p]) : "–"))));
    }));
  }
}

// shown returns a container's state as it is known now.
export function shown(c) {
  if (c.state === "starting" || c.state === "frozen" || c.state === "pooled") return c.state;
  return running(c.name) > 0 ? "busy" : "idle";
}

// durable says how many processes run, and how many are started again and again.
function durable(processes) {
  const looping = processes.filter(loops).length, up = processes.filter(runs).length;
  return [up && `${up} running`, looping && `${looping} crash-looping`].filter(Boolean).join(", ") || "–";
}

function states(containers) {
  const counts = {};
  for (const c of containers) counts[shown(c)] = (counts[shown(c)] ?? 0) + 1;
  return Object.entries(counts).map(([s, n]) => `${n} ${s}`).join(", ") || "–";
}
