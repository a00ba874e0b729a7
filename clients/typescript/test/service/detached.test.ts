import assert from "node:assert/strict";
import test from "node:test";

import { Sandbox, SandboxError, type Attached } from "../../src/index.js";
import { alone, connect, kindOf, setting } from "./lab.js";

/** until reads output until it ends with a text, and leaves the command there. */
async function until(attached: Attached, end: string): Promise<string> {
    let all = "";
    for await (const event of attached) {
        if (event.type === "stdout") all += event.text;
        if (all.endsWith(end)) break;
    }
    return all;
}

test("a command goes on without its caller, who comes back to it", async (t) => {
    const box = await alone(t);
    const shell = await box.attach({ command: "while read -r line; do echo got $line; done; echo bye; exit 5", detachOnDisconnect: true });
    const { execId } = shell;
    assert(execId !== undefined);
    await shell.write("one\n");
    assert.equal(await until(shell, "got one\n"), "got one\n");
    assert.equal(shell.offset, 8);
    const [listed] = await box.execList();
    assert.deepEqual([listed?.execId, listed?.outputBytes, listed?.endedAt], [execId, 8, undefined]);

    const all = await box.reattach({ execId });
    await all.write("two\n");
    assert.equal(await until(all, "got two\n"), "got one\ngot two\n");
    const rest = await box.reattach({ execId, offset: all.offset });
    await rest.end();
    let text = "";
    for await (const event of rest) {
        if (event.type === "stdout") text += event.text;
        if (event.type === "exit") assert.equal(event.result.exitCode, 5);
    }
    assert.equal(text, "bye\n");
    const late = await box.reattach({ execId, offset: rest.offset });
    assert.equal((await late.exit()).exitCode, 5);
});

test("signals reach a command from whoever came back, and a kill ends it", async (t) => {
    const box = await alone(t);
    const trapped = await box.attach({ command: "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done", detachOnDisconnect: true });
    const execId = trapped.execId!;
    await until(trapped, "ready\n");
    const back = await box.reattach({ execId, offset: trapped.offset });
    await back.signal("INT");
    assert.equal((await back.exit()).exitCode, 6);

    const abort = new AbortController();
    const sleeper = await box.attach({ command: "sleep 7632", detachOnDisconnect: true, signal: abort.signal });
    abort.abort(new Error("enough"));
    await assert.rejects(sleeper.exit(), /enough/);
    assert.equal((await box.execList()).find((exec) => exec.execId === sleeper.execId)?.endedAt, undefined);
    const ended = await box.execKill({ execId: sleeper.execId! });
    assert.equal(ended.result?.failed, true);
    assert.equal(await kindOf(box.reattach({ execId: "x-" + "a".repeat(26) })), "notFound");
});

test("who comes back takes the place of who was there, and of a stream there is a way back, too", async (t) => {
    const box = await alone(t);
    let execId: string | undefined;
    for await (const event of box.execStream({ command: "until [ -e /tmp/go ]; do sleep 0.02; done; echo done", detachOnDisconnect: true })) {
        if (event.type === "start") execId = event.execId;
        break;
    }
    const first = await box.reattach({ execId: execId! });
    const second = await box.reattach({ execId: execId! });
    await assert.rejects(first.exit(), (error) => error instanceof SandboxError && error.kind === "conflict" && error.requestId !== undefined);
    await box.exec({ command: "touch /tmp/go" });
    assert.equal(await until(second, "done\n"), "done\n");
    const stranger = await Sandbox.open(connect(t, { socketPath: setting("SANDBOX_SOCKET") }), { id: box.id + "-other", userId: box.userId + "-other" });
    assert.equal(await kindOf(stranger.reattach({ execId: execId! })), "notFound");
});
