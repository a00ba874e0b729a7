import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { Sandbox, type ExecEvent } from "../../src/index.js";
import { alone, connect, kindOf, setting } from "./lab.js";

test("a conversation with a command", async (t) => {
    const box = await alone(t);
    const shell = await box.attach({ command: "while read -r line; do echo got $line; done; echo bye >&2; exit 5" });
    const events: ExecEvent[] = [];
    await shell.write("one\n");
    for await (const event of shell) {
        events.push(event);
        if (event.type !== "stdout") continue;
        if (event.text === "got one\n") await shell.write("two\n");
        else await shell.end();
    }
    assert.deepEqual(events.map((event) => ("text" in event ? event.text : event.type)), ["start", "got one\n", "got two\n", "bye\n", "exit"]);
    const exit = events.at(-1);
    assert(exit?.type === "exit" && exit.result.exitCode === 5);
});

test("stdin of any size, read slowly", async (t) => {
    const box = await alone(t);
    const sum = await box.attach({ command: "sleep 0.2; wc -c" });
    const data = new Uint8Array(5 << 20).fill(65);
    const texts: string[] = [];
    const reading = (async () => {
        for await (const event of sum) if (event.type === "stdout") texts.push(event.text);
    })();
    await sum.write(data);
    await sum.end();
    await reading;
    assert.equal(texts.join("").trim(), String(data.length));
    const whole = await box.attach({ argv: ["cat"], stdin: "all of it" });
    assert.equal((await whole.exit()).exitCode, 0);
});

test("signals, a close and an AbortSignal reach the command", async (t) => {
    const box = await alone(t);
    const trapped = await box.attach({ command: "trap 'echo caught; exit 6' INT; sleep 7032 & echo ready; wait" });
    for await (const event of trapped) {
        if (event.type === "stdout" && event.text === "ready\n") await trapped.signal("INT");
        if (event.type === "exit") assert.equal(event.result.exitCode, 6);
    }
    const gone = "for i in $(seq 1000); do pgrep -fx 'sleep 7031' >/dev/null || exit 0; sleep 0.02; done; exit 1";
    const closed = await box.attach({ command: "sleep 7031 & echo runs; wait" });
    const read = (async () => {
        for await (const event of closed) if (event.type === "stdout") closed.close();
    })();
    await assert.rejects(read, /closed before the command's end/);
    assert.equal((await box.exec({ command: gone })).exitCode, 0);
    const abort = new AbortController();
    const aborted = await box.attach({ command: "sleep 7031", signal: abort.signal });
    abort.abort(new Error("enough"));
    await assert.rejects(aborted.exit(), /enough/);
    assert.equal((await box.exec({ command: gone })).exitCode, 0);
});

test("an attached exec that cannot start", async (t) => {
    const box = await alone(t);
    assert.equal(await kindOf(box.attach({ command: "true", cwd: "/etc" })), "denied");
    const forgotten = await Sandbox.open(connect(t), { id: box.id + "-2", userId: box.userId });
    await forgotten.forget();
    assert.equal(await kindOf(forgotten.attach({ command: "true" })), "notFound");
});

test("over TLS", async (t) => {
    const client = connect(t, { url: setting("SANDBOX_TEST_URL"), tls: { ca: await readFile(setting("SANDBOX_TEST_CA")) }, token: setting("SANDBOX_TEST_TOKEN") });
    const box = await Sandbox.open(client, { id: "ts-tls-attach", userId: "ts-tls-attach" });
    const cat = await box.attach({ argv: ["cat"] });
    await cat.write("over TLS");
    await cat.end();
    let text = "";
    for await (const event of cat) if (event.type === "stdout") text += event.text;
    assert.equal(text, "over TLS");
});
