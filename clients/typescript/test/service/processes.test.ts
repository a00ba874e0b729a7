import assert from "node:assert/strict";
import test from "node:test";

import type { ProcessLogEvent } from "../../src/index.js";
import { alone, kindOf, workspace } from "./lab.js";

test("a process from its start to its removal", async (t) => {
    const box = await alone(t);
    const started = await box.processStart({ name: "worker", command: 'echo $N; printf "\\377"; sleep 7021', env: { N: 6 }, permissions: workspace });
    const { id: processId } = started;
    assert.deepEqual([started.status, started.name, started.notices], ["running", "worker", []]);
    assert.deepEqual((await box.processList()).map((process) => process.id), [processId]);
    const events: ProcessLogEvent[] = [];
    for await (const event of box.processFollow({ processId })) {
        events.push(event);
        const text = events.map((event) => (event.type === "output" ? event.text : "")).join("");
        if (text === "6\n\ufffd") await box.processStop({ processId, signal: "INT" });
    }
    const { type, signal, status } = events.at(-1) as Extract<ProcessLogEvent, { type: "end" }>;
    assert.deepEqual([type, signal, status], ["end", "SIGINT", "stopped"]);
    const log = await box.processLog({ processId, lines: 10 });
    assert.deepEqual([log.text, log.data, log.truncated], ["6\n\ufffd", Buffer.from("6\n\xff", "latin1"), false]);
    assert.equal((await box.processGet({ processId })).status, "stopped");
    await box.processRemove({ processId });
    assert.equal(await kindOf(box.processGet({ processId })), "notFound");
    assert.deepEqual(await box.processList(), []);
});

test("all processes of a user are stopped at once", async (t) => {
    const box = await alone(t);
    const ids = [];
    for (const name of ["one", "two"]) ids.push((await box.processStart({ name, argv: ["sleep", "7022"], keepAlive: true })).id);
    const stopped = await box.processStopAll();
    assert.deepEqual(stopped.map((process) => [process.id, process.status]), ids.map((id) => [id, "stopped"]));
    assert.deepEqual(await box.processStopAll(), []);
    for (const processId of ids) await box.processRemove({ processId });
});

test("a process is waited for until it is ready, and until it ends", async (t) => {
    const box = await alone(t);
    const ready = { command: "test -e /tmp/go", intervalMs: 100 };
    const { id: processId } = await box.processStart({ command: "touch /tmp/go; until test -e /tmp/end; do sleep 0.1; done; exit 3", ready });
    const now = await box.processWait({ processId, until: "ready" });
    assert.deepEqual([now.timedOut, now.ready?.ok, now.status], [false, true, "running"]);
    assert.equal((await box.processWait({ processId, timeoutMs: 50 })).timedOut, true);
    const waiting = box.processWait({ processId });
    await box.exec({ command: "touch /tmp/end" });
    const ended = await waiting;
    assert.deepEqual([ended.timedOut, ended.status, ended.exitCode], [false, "exited", 3]);
    await box.processRemove({ processId });
});

test("whoever leaves a log leaves the process alone", async (t) => {
    const box = await alone(t);
    const { id: processId } = await box.processStart({ command: "echo up; sleep 7023" });
    for await (const event of box.processFollow({ processId })) if (event.type === "output") break;
    assert.equal((await box.processGet({ processId })).status, "running");
    await box.processRemove({ processId });
});
