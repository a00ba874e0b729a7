// What is known of the service: lists that are fetched, and then updated by events. Each is bounded.
import { call, follow } from "./api.js";
import { clock } from "./dom.js";

export const store = { containers: new Map(), pooled: new Map(), processes: [], calls: new Map(), decisions: new Map(), sandboxes: [], health: null, hour: null, hosts: [], link: "" };
const most = { calls: 4096, decisions: 10000, hosts: 500 };
const watchers = new Set();
const inside = new Map(); // by container: how many commands are known to run in it

// watch calls draw whenever something has changed; it returns a function that stops that.
export function watch(draw) {
  watchers.add(draw);
  draw();
  return () => watchers.delete(draw);
}

// Changes are drawn together, in one frame: at most four times a second, and less often when drawing is slow, so that it takes at most
// a twentieth of the time; and not while somebody scrolls, unless that lasts.
let planned = 0, cost = 0, scrolled = 0;
addEventListener("scroll", () => { scrolled = performance.now(); }, { capture: true, passive: true });
addEventListener("visibilitychange", () => changed());
export function changed() {
  if (planned || document.hidden) return;
  planned = performance.now();
  setTimeout(soon, Math.min(Math.max(250, 20 * cost), 900));
}

function soon() {
  const now = performance.now(), rest = scrolled + 150 - now;
  if (rest > 0 && now - planned < 900) setTimeout(soon, rest);
  else requestAnimationFrame(drawAll);
}

function drawAll() {
  planned = 0;
  const begun = performance.now();
  for (const draw of [...watchers]) draw();
  cost = performance.now() - begun;
}

function bound(map, limit, gone = () => {}) {
  for (const [k, v] of map) {
    if (map.size <= limit) return;
    map.delete(k);
    gone(v);
  }
}

// count updates inside when a call changes.
function count(before, now) {
  for (const [c, n] of [[before, -1], [now, 1]]) {
    if (c?.phase !== "running" || !c.container) continue;
    const runs = (inside.get(c.container) ?? 0) + n;
    if (runs) inside.set(c.container, runs);
    else inside.delete(c.container);
  }
}

let registered = new Set(), asked = null, last = -Infinity;
// refresh fetches the lists: concurrent calls are one, and there is at least a second between two fetches.
export function refresh() {
  return (asked ??= new Promise((resolve) => setTimeout(resolve, Math.max(100, last + 1000 - performance.now()))).then(async () => {
    asked = null;
    last = performance.now();
    const [containers, sandboxes, health, hour, processes] = await Promise.all(["containers?usage=true", "sandboxes", "health", "calls", "processes"].map((path) => call("GET", path)));
    const keyed = (list) => new Map(list.map((c) => [c.name, taken(c)]));
    store.containers = keyed(containers.containers);
    store.pooled = containers.pooled ? keyed(containers.pooled) : null; // absent for a caller who acts for some users
    store.hour = hour;
    store.processes = processes.processes;
    store.sandboxes = sandboxes.sandboxes;
    registered = new Set(sandboxes.sandboxes.map((s) => s.id));
    store.health = health;
    store.loaded = true;
    changed();
  }).catch(() => {}));
}

// taken computes how many processors a container has used since its last known usage.
function taken(c) {
  const before = store.containers.get(c.name) ?? store.pooled?.get(c.name);
  if (!c.usage || !before?.usage) return c;
  const ms = Date.parse(c.usage.at) - Date.parse(before.usage.at);
  c.cores = ms > 0 ? Math.max(c.usage.cpuMs - before.usage.cpuMs, 0) / ms : before.cores;
  return c;
}

// decided stores a decision, with the strings by which it is found later.
function decided(d) {
  const k = [d.userId, d.container, d.name, d.via, d.type, d.port, d.verdict, d.reason].join("\u0000"), before = store.decisions.get(k);
  if (before && before.seq >= d.seq) return;
  d.at = Date.parse(d.time);
  d.each = [d.userId, d.name, d.container, d.via, d.verdict, d.reason].join("\u0000");
  d.flow = [d.userId, d.name, d.verdict !== "allowed"].join("\u0000");
  d.text = `${d.userId} ${d.name} ${d.reason} ${d.container}`.toLowerCase();
  store.decisions.delete(k); // so that the latest is the last
  store.decisions.set(k, d);
  bound(store.decisions, most.decisions);
}

// allDecisions fetches the decisions from before the page was opened.
export async function allDecisions() {
  const { decisions } = await call("GET", "egress/decisions?limit=" + most.decisions).catch(() => ({ decisions: [] }));
  const later = [...store.decisions.values()];
  store.decisions.clear();
  for (const d of [...decisions, ...later]) decided(d);
  changed();
}

function take(event) {
  switch (event.kind) {
    case "gap":
      for (const c of store.calls.values()) if (c.phase !== "ended") { count(c); store.calls.delete(c.id); } // its end may be among the missing events
      if (!event.id.endsWith("-0")) break;
      for (const map of [store.calls, store.decisions, inside]) map.clear();
      store.hosts = [];
      break;
    case "call": {
      const before = store.calls.get(event.call.id);
      const now = { ...before, ...event.call, userId: event.userId ?? "", began: before?.began ?? Date.parse(event.time), at: Date.parse(event.time) };
      count(before, now);
      store.calls.set(now.id, now);
      bound(store.calls, most.calls, (c) => count(c));
      break;
    }
    case "container": {
      const c = event.container, all = event.userId ? store.containers : (store.pooled ??= new Map());
      if (c.state === "removed") all.delete(c.name);
      else all.set(c.name, { commands: 0, ...all.get(c.name), ...c, userId: event.userId });
      break;
    }
    case "process":
      refresh();
      break;
    case "decision":
      decided(event.decision);
      break;
    case "node":
    case "seat":
      store.hosts = [event, ...store.hosts].slice(0, most.hosts);
      break;
  }
  changed();
}

// start follows the service until the session ends.
export function start() {
  let was = "";
  follow((event) => {
    take(event);
    if (event.kind === "gap" && was === "live" && !event.id.endsWith("-0")) store.link = `live; some of what happened until ${clock(event.time)} is missing`;
    if (event.kind === "gap" || (event.kind === "call" && event.call.phase === "began" && event.call.sandboxId && !registered.has(event.call.sandboxId))) refresh();
  }, (state) => {
    if (state === "live") {
      store.link = was === "lost" ? "back: the service was away, and what is shown is current again" : "live";
      refresh();
    } else {
      store.link = "lost: the service does not answer; trying again";
    }
    was = state;
    changed();
  });
  const ticking = setInterval(() => { if (!document.hidden) refresh(); }, 12000); // what has no events: registrations, and the usage of containers
  return () => clearInterval(ticking);
}

// loops reports whether a process is started again and again, because it ends soon each time.
export const loops = (p) => p.keepAlive && p.desiredState === "running" && p.backoffMs > 0 && p.restartCount > 0 && (!runs(p) || Date.now() - Date.parse(p.lastStartedAt) < 30000);

// runs reports whether a process runs, paused or not.
export const runs = (p) => p.status === "running" || p.status === "paused";

// running returns how many commands are known to run in a container.
export const running = (name) => inside.get(name) ?? 0;

// taking returns the processors and bytes that containers use together; null if that is known of none.
export function taking(containers) {
  let cores = null, memory = null;
  for (const c of containers) {
    if (c.cores !== undefined) cores = (cores ?? 0) + c.cores;
    if (c.usage) memory = (memory ?? 0) + c.usage.memoryBytes;
  }
  return [cores, memory];
}

export function users() {
  const all = new Map();
  const of = (id) => all.get(id) ?? (all.set(id, { id, sandboxes: 0, containers: [], processes: [], running: 0, last: 0, denied: 0 }), all.get(id));
  for (const s of store.sandboxes) of(s.userId).sandboxes++;
  for (const c of store.containers.values()) of(c.userId).containers.push(c);
  for (const p of store.processes) of(p.userId).processes.push(p);
  for (const c of store.calls.values()) {
    if (!c.userId) continue;
    const user = of(c.userId);
    if (c.phase !== "ended") user.running++;
    user.last = Math.max(user.last, c.at);
  }
  for (const u of all.values()) [u.cores, u.memory] = taking(u.containers);
  for (const d of store.decisions.values()) if (d.userId && d.verdict === "denied") of(d.userId).denied++;
  return [...all.values()].sort((a, b) => b.running - a.running || b.last - a.last || (a.id < b.id ? -1 : 1));
}
