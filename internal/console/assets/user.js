// One user: sandboxes, containers and what they see, commands and durable processes.
import { call, lines, open } from "./api.js";
import { bytes, clock, confirm, cores, h, keyed, list, ms, safe, table, theirs, visible } from "./dom.js";
import { picture, request } from "./explain.js";
import { shown } from "./overview.js";
import { changed, refresh, store, watch } from "./store.js";

const logKept = 50000; // characters of a log that are kept at least, so that a long log does not fill the page

export function user(main, [id = ""]) {
  const fault = h("p.bad", { role: "alert" });
  const sandboxes = table("Sandboxes", ["Sandbox", "Working directory", "Holds", "State", "To do"]);
  const containers = h("div.columns");
  const commands = list("Commands", [
    ["Time", "6rem", (c) => clock(c.began)],
    ["Command", "minmax(12rem, 3fr)", (c) => c.command, (c) => h("code", null, theirs(c.command))],
    ["Grants", "minmax(6rem, 1fr)", grants, (c) => theirs(grants(c))],
    ["Sandbox", "7rem", (c) => c.sandboxId, (c) => theirs(c.sandboxId, 63)],
    ["Container", "5rem", (c) => c.way ?? ""],
    ["End", "8rem", end, (c) => h("span", { class: c.phase === "ended" ? (c.outcome === "ok" ? "dim" : "bad") : "good" }, end(c))],
    ["Took", "5rem", (c) => (c.phase === "ended" ? ms(c.totalMs) : "")],
    ["Output", "5rem", (c) => (c.phase === "running" ? c.id : ""), (c) => (c.phase === "running" ? h("button.small", { type: "button", onclick: () => printed(c) }, "Output") : "")],
  ]);
  const output = h("div");
  const processes = table("Durable processes", ["Process", "Command", "State", "Restarts", "To do"]);
  const log = h("div");
  main.append(h("h1", null, "User ", theirs(id, 63)), fault,
    h("section.card", null, h("h2", null, "Sandboxes"), sandboxes.el),
    h("section.card", null, h("h2", null, "Commands, now and lately"), commands.el, output),
    h("section.card", null, h("h2", null, "Durable processes"), processes.el, log), h("section", null, h("h2", null, "Containers"), containers));

  const act = async (question, yes, work) => {
    if (question && !(await confirm(question, yes))) return;
    fault.textContent = "";
    await work().catch((e) => { fault.textContent = safe(e.message, 2000); });
    refresh();
    look();
  };
  const button = (text, question, work, danger) => h(danger ? "button.danger" : "button", { type: "button", onclick: () => act(question, text, work) }, text);

  let known = -1, looking = false, following = null;
  const own = () => store.sandboxes.filter((s) => s.userId === id);
  async function look() {
    if (looking || !own().length) return;
    looking = true;
    known = store.processes;
    const found = await call("GET", `sandboxes/${encodeURIComponent(own()[0].id)}/processes`).catch(() => null);
    looking = false;
    if (found) keyed(processes.body, found.processes, (p) => p.id + p.status + p.restartCount, (p) => processRow(p));
    if (known !== store.processes) look();
  }
  function processRow(p) {
    const path = `sandboxes/${encodeURIComponent(p.sandboxId)}/processes/${p.id}`;
    return h("tr", null, h("th", { scope: "row" }, theirs(p.name || p.id)), h("td", null, h("code", null, theirs(p.command || (p.argv ?? []).join(" ")))),
      h("td", null, h("span", { class: p.status === "running" ? "good" : "dim" }, p.status)), h("td", null, p.restartCount),
      h("td", null, h("button", { type: "button", onclick: () => follow(p, path) }, "Log"), " ",
        p.status === "running" ? button("Stop", `Stop the process “${safe(p.name || p.id, 80)}”?`, () => call("POST", path + "/stop", {}), true)
          : button("Remove", `Remove the process “${safe(p.name || p.id, 80)}” with its log?`, () => call("DELETE", path), true)));
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
    keyed(containers, [...store.containers.values()].filter((c) => c.userId === id), (c) => c.name, (c) => containerCard(c), (el, c) => el.show(c));
    if (known !== store.processes) look();
  });
  function sandboxRow(s) {
    const path = "sandboxes/" + encodeURIComponent(s.id), p = s.permissions;
    const holds = [p.network && "network", p.events && "events", p.writeDirs?.length && "writes " + p.writeDirs.join(" "), p.readDirs?.length && "reads " + p.readDirs.join(" "), p.appId && "app " + p.appId].filter(Boolean);
    return h("tr", null, h("th", { scope: "row" }, theirs(s.id)), h("td", null, h("code", null, theirs(p.workingDir || "/home"))), h("td", null, theirs(holds.join(", ") || "nothing more")),
      h("td", null, s.paused ? "paused" : "runs"), h("td", null, h("a", { href: "#/explain/" + encodeURIComponent(s.id) }, "Explain"), " ",
        s.paused ? button("Resume", "", () => call("POST", path + "/resume")) : button("Pause", `Pause the sandbox “${safe(s.id, 80)}” with its processes?`, () => call("POST", path + "/pause")), " ",
        button("Remove", `Remove the sandbox “${safe(s.id, 80)}”? The user's files stay.`, () => call("DELETE", path), true)));
  }
  return () => { stop(); following?.abort(); watched = 0; };
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
