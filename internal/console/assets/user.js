// One user: sandboxes, containers and what they see, commands and durable processes.
import { call, lines, open } from "./api.js";
import { bytes, clock, confirm, cores, h, keyed, list, ms, safe, span, table, theirs, visible } from "./dom.js";
import { picture, request } from "./explain.js";
import { shown } from "./overview.js";
import { changed, loops, refresh, runs, store, watch } from "./store.js";

const logKept = 50000; // characters of a log that are kept at least, so that a long log does not fill the page

export function user(main, [id = ""]) {
  const fault = h("p.bad", { role: "alert" });
  const sandboxes = table("Sandboxes", ["Sandbox", "Working directory", "Permissions", "State", "Actions"]);
  const containers = h("div.columns");
  const commands = list("Commands", [
    ["Time", "4.5rem", (c) => clock(c.began)],
    ["Result", "5.5rem", end, (c) => h("span", { class: c.phase === "ended" ? (c.outcome === "ok" ? "dim" : "bad") : "good" }, end(c))],
    ["Output", "4.5rem", (c) => (c.phase === "running" ? c.id : ""), (c) => (c.phase === "running" ? h("button.small", { type: "button", onclick: () => printed(c) }, "Output") : "")],
    ["Command", "minmax(12rem, 3fr)", (c) => c.command, (c) => h("code", null, theirs(c.command))],
    ["Grants", "minmax(6rem, 1fr)", grants, (c) => theirs(grants(c))],
    ["Sandbox", "7rem", (c) => c.sandboxId, (c) => theirs(c.sandboxId, 63)],
    ["Container", "5rem", (c) => c.way ?? ""],
    ["Duration", "5rem", (c) => (c.phase === "ended" ? ms(c.totalMs) : "")],
  ]);
  const output = h("div");
  const processes = table("Durable processes", ["Process", "Command", "State", "Last exit", "Restarts", "Reached at", "Actions"]);
  const log = h("div");
  const unknown = h("p.warn", { role: "status", hidden: true }, "The service knows no such user: nobody of that name has a sandbox, a process or a call here. Users are listed in the ", h("a", { href: "#/overview" }, "overview"), ".");
  main.append(h("h1", null, "User ", theirs(id, 63)), fault, unknown,
    h("section.card", null, h("h2", null, "Sandboxes"), sandboxes.el),
    h("section.card", null, h("h2", null, "Commands"), commands.el, output),
    h("section.card", null, h("h2", null, "Durable processes"), processes.el, log), h("section", null, h("h2", null, "Containers"), containers));

  const act = async (question, yes, work) => {
    if (question && !(await confirm(question, yes))) return;
    fault.textContent = "";
    await work().catch((e) => { fault.textContent = safe(e.message, 2000); });
    refresh();
  };
  const button = (text, question, work, danger) => h(danger ? "button.danger" : "button", { type: "button", onclick: () => act(question, text, work) }, text);

  let following = null;
  const own = () => store.sandboxes.filter((s) => s.userId === id);
  // processRow is a row whose cells change when what they show does; so a button keeps the focus.
  function processRow() {
    const cells = Array.from({ length: 6 }, (_, i) => h(i === 1 || i === 2 ? "td.state" : "td")), name = h("th", { scope: "row" }), row = h("tr", null, name, cells), shown = [];
    const fill = (i, cell, key, make) => {
      if (shown[i] === key) return;
      shown[i] = key;
      cell.replaceChildren(...[make()].flat(9).filter(Boolean));
    };
    row.show = (p) => {
      const by = own().some((s) => s.id === p.sandboxId) ? p.sandboxId : own()[0]?.id ?? p.sandboxId; // its own may be gone
      const path = `sandboxes/${encodeURIComponent(by)}/processes/${p.id}`, called = safe(p.name || p.id, 80);
      const goes = runs(p) || Boolean(p.nextRestartAt), state = processState(p), exit = lastExit(p), reached = JSON.stringify(p.expose ?? []);
      fill(0, name, p.name || p.id, () => theirs(p.name || p.id));
      fill(1, cells[0], p.command ?? "", () => h("code", null, theirs(p.command || (p.argv ?? []).join(" "))));
      fill(2, cells[1], JSON.stringify(state), () => state.map(([text, colour]) => h("div", { class: colour }, theirs(text))));
      fill(3, cells[2], exit.join("\n"), () => exit.map((text, i) => h("div", { class: i ? "dim" : null }, theirs(text, 500))));
      fill(4, cells[3], String(p.restartCount), () => document.createTextNode(p.restartCount));
      fill(5, cells[4], reached, () => (p.expose ?? []).map((e) => h("div", { class: e.fault ? "bad" : null }, h("code", null, e.address), ` to port ${e.port}`, e.fault ? [": ", theirs(e.fault)] : null)));
      fill(6, cells[5], by + goes, () => h("div.acts", null, h("button", { type: "button", onclick: () => follow(p, path) }, "Log"),
        goes ? button("Stop", `Stop the process “${called}”?`, () => call("POST", path + "/stop", {}), true)
          : button("Remove", `Remove the process “${called}” with its log?`, () => call("DELETE", path), true)));
    };
    return row;
  }
  // printed shows a running command's latest output, until it ends or another one is selected.
  let watched = 0;
  async function printed(c) {
    watched = c.id;
    const text = h("pre", { tabindex: "0", role: "log", "aria-label": "Output of " + safe(c.command, 80) }), ended = h("p.dim");
    output.replaceChildren(h("h3", null, "Output of ", h("code", null, theirs(c.command, 80))), text, ended);
    while (watched === c.id) {
      const now = await call("GET", `sandboxes/${encodeURIComponent(c.sandboxId)}/calls/${c.id}/output`).catch((e) => e);
      if (now instanceof Error) {
        ended.textContent = now.status === 404 ? "It has ended." : safe(now.message, 500);
        return;
      }
      const shown = (now.cut ? "…" : "") + visible(now.output);
      if (text.textContent !== shown) text.textContent = shown;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  async function follow(p, path) {
    following?.abort();
    const mine = (following = new AbortController());
    const text = h("pre", { tabindex: "0", role: "log", "aria-label": "Log of " + safe(p.name || p.id, 80) });
    log.replaceChildren(h("h3", null, "Log of ", theirs(p.name || p.id, 80)), text);
    let kept = "", planned = 0;
    try {
      await lines(await open("GET", path + "/log?follow=true", undefined, { headers: { Accept: "application/x-ndjson" }, signal: mine.signal }), (line) => {
        if (!line) return;
        const data = JSON.parse(line).data;
        if (data === undefined) return;
        kept += visible(data);
        if (kept.length > 2 * logKept) kept = kept.slice(-logKept);
        planned ||= setTimeout(() => {
          planned = 0;
          text.textContent = kept;
          text.scrollTop = text.scrollHeight;
        }, 100);
      });
    } catch (e) {
      if (!mine.signal.aborted) log.append(h("p.bad", null, safe(e.message)));
    }
  }

  const stop = watch(() => {
    keyed(sandboxes.body, own(), (s) => s.id + s.updatedAt + Boolean(s.paused), (s) => sandboxRow(s));
    const calls = [...store.calls.values()].filter((c) => c.userId === id).reverse();
    commands.set(calls);
    const durable = store.processes.filter((p) => p.userId === id), warm = [...store.containers.values()].filter((c) => c.userId === id);
    keyed(processes.body, durable, (p) => p.id, () => processRow(), (el, p) => el.show(p));
    unknown.hidden = !store.loaded || own().length + calls.length + durable.length + warm.length > 0;
    keyed(containers, warm, (c) => c.name, (c) => containerCard(c), (el, c) => el.show(c));
  });
  function sandboxRow(s) {
    const path = "sandboxes/" + encodeURIComponent(s.id), p = s.permissions;
    const holds = [p.network && "network", p.events && "events", p.writeDirs?.length && "writes " + p.writeDirs.join(" "), p.readDirs?.length && "reads " + p.readDirs.join(" "), p.appId && "app " + p.appId].filter(Boolean);
    return h("tr", null, h("th", { scope: "row" }, theirs(s.id)), h("td", null, h("code", null, theirs(p.workingDir || "/home"))), h("td", null, theirs(holds.join(", ") || "nothing more")),
      h("td", null, s.paused ? "paused" : "active"), h("td", null, h("div.acts", null, h("a", { href: "#/explain/" + encodeURIComponent(s.id) }, "Explain"),
        s.paused ? button("Resume", "", () => call("POST", path + "/resume")) : button("Pause", `Pause the sandbox “${safe(s.id, 80)}” with its processes?`, () => call("POST", path + "/pause")),
        button("Remove", `Remove the sandbox “${safe(s.id, 80)}”? The user's files stay.`, () => call("DELETE", path), true))));
  }
  return () => { stop(); following?.abort(); watched = 0; };
}

// processState is what a process does now: lines with their colours.
function processState(p) {
  const state = [[p.status + (p.pid ? `, pid ${p.pid}` : ""), p.status === "running" ? "good" : p.status === "paused" ? "warn" : "dim"]];
  if (loops(p)) state[0] = [`${p.status}, crash-looping`, "bad"];
  if (p.nextRestartAt) state.push(["starts again at " + clock(p.nextRestartAt), loops(p) ? "bad" : "dim"]);
  if (runs(p) && p.ready) state.push(p.ready.ok ? ["ready", "good"] : ["not ready" + (p.ready.message ? ": " + p.ready.message : ""), "warn"]);
  if (p.notice) state.push([p.notice, "warn"]);
  return state;
}

// lastExit is how and when a process ended last, and why.
function lastExit(p) {
  const why = (runs(p) ? p.exitReason : p.reason) ?? "";
  if (!p.lastExitedAt) return why ? [why] : ["–"];
  const how = p.oomKilled ? "out of memory" : p.signal ?? (p.exitCode === null ? "not known" : "code " + p.exitCode);
  return [`${how}, ${span(Date.now() - Date.parse(p.lastExitedAt))} ago`, why].filter(Boolean);
}

const grants = (c) => `${c.grants ?? ""} ${c.network ?? ""}`.trim() || "–";

function end(c) {
  if (c.phase !== "ended") return c.phase === "running" ? "running" : "waiting";
  return c.outcome === "failed" ? c.signal ?? "exit " + c.exitCode : c.outcome;
}

// containerCard shows a container with the picture of what its latest call saw.
function containerCard(c) {
  const state = h("span"), body = h("div", null, h("p.dim", null, "No call in this container is known."));
  const card = h("section.card", null, h("h3", null, h("span.mono", null, theirs(c.name)), " ", state), body);
  let asked = "", asking = false;
  card.show = (now) => {
    state.textContent = shown(now) + (now.usage ? `, ${cores(now.cores)} processors, ${bytes(now.usage.memoryBytes)}` : "");
    state.className = shown(now) === "busy" ? "good" : "dim";
    const last = [...store.calls.values()].filter((k) => k.container === now.name && k.sandboxId).at(-1);
    const grants = last && JSON.stringify([last.sandboxId, last.grants, last.network]);
    if (!grants || grants === asked || asking) return;
    asked = grants;
    asking = true;
    call("POST", `sandboxes/${encodeURIComponent(last.sandboxId)}/explain`, request(last.grants ?? "", last.network ?? ""))
      .then((e) => body.replaceChildren(picture(e)), (e) => body.replaceChildren(h("p.dim", null, safe(e.message, 500)))).then(() => { asking = false; changed(); });
  };
  return card;
}
