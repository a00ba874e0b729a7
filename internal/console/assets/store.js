// What is known of the service: lists that are asked for, kept up with events, each bounded.
import { call, follow } from "./api.js";

export const store = { containers: new Map(), calls: new Map(), decisions: new Map(), processes: 0, sandboxes: [], health: null, link: "", since: Date.now() };
const most = { calls: 4096, decisions: 10000 };
const watchers = new Set();

// watch has a view drawn when something has changed, at most four times a second; it returns how to stop that.
export function watch(draw) {
  watchers.add(draw);
  draw();
  return () => watchers.delete(draw);
}

let planned = false;
export function changed() {
  if (planned) return;
  planned = true;
  setTimeout(() => requestAnimationFrame(() => { planned = false; for (const draw of [...watchers]) draw(); }), 250);
}

function bound(map, limit) {
  for (const k of map.keys()) {
    if (map.size <= limit) return;
    map.delete(k);
  }
}

let asked = null;
// refresh asks for the lists; calls that come together are one.
export function refresh() {
  return (asked ??= new Promise((resolve) => setTimeout(resolve, 100)).then(async () => {
    asked = null;
    const [containers, sandboxes, health] = await Promise.all([call("GET", "containers"), call("GET", "sandboxes"), call("GET", "health")]);
    store.containers = new Map(containers.containers.map((c) => [c.name, c]));
    store.sandboxes = sandboxes.sandboxes;
    store.health = health;
    store.loaded = true;
    changed();
  }).catch(() => {}));
}

const decisionKey = (d) => JSON.stringify([d.userId, d.container, d.name, d.via, d.type, d.port, d.verdict, d.reason]);

function take(event) {
  switch (event.kind) {
    case "gap":
      store.gap = event.time;
      if (!event.id.endsWith("-0")) break;
      for (const map of [store.calls, store.decisions]) map.clear();
      break;
    case "call": {
      const before = store.calls.get(event.call.id);
      store.calls.set(event.call.id, { ...before, ...event.call, userId: event.userId ?? "", began: before?.began ?? Date.parse(event.time), at: Date.parse(event.time) });
      bound(store.calls, most.calls);
      break;
    }
    case "container": {
      const c = event.container;
      if (c.state === "removed") store.containers.delete(c.name);
      else store.containers.set(c.name, { commands: 0, ...store.containers.get(c.name), ...c, userId: event.userId });
      break;
    }
    case "process":
      store.processes++;
      break;
    case "decision": {
      const k = decisionKey(event.decision);
      store.decisions.delete(k); // so that the latest is the last
      store.decisions.set(k, event.decision);
      bound(store.decisions, most.decisions);
      break;
    }
  }
  changed();
}

// start follows the service until the session ends.
export function start() {
  let was = "";
  follow((event) => {
    take(event);
    if (event.kind === "gap" || (event.kind === "call" && event.call.phase === "began" && !store.sandboxes.some((s) => s.id === event.call.sandboxId))) refresh();
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
  const ticking = setInterval(() => refresh(), 15000); // what no event tells: registrations
  return () => clearInterval(ticking);
}

// stateOf is how a container is: busy where commands of which it is known run in it.
export function running(name) {
  let n = 0;
  for (const c of store.calls.values()) if (c.container === name && c.phase === "running") n++;
  return n;
}

export function users() {
  const all = new Map();
  const of = (id) => all.get(id) ?? (all.set(id, { id, sandboxes: 0, containers: [], running: 0, last: 0, denied: 0 }), all.get(id));
  for (const s of store.sandboxes) of(s.userId).sandboxes++;
  for (const c of store.containers.values()) of(c.userId).containers.push(c);
  for (const c of store.calls.values()) {
    if (!c.userId) continue;
    const user = of(c.userId);
    if (c.phase !== "ended") user.running++;
    user.last = Math.max(user.last, c.at);
  }
  for (const d of store.decisions.values()) if (d.userId && d.verdict === "denied") of(d.userId).denied++;
  return [...all.values()].sort((a, b) => b.running - a.running || b.last - a.last || (a.id < b.id ? -1 : 1));
}
