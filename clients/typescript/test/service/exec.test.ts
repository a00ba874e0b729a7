import assert from "node:assert/strict";
import test from "node:test";

import { Sandbox, type ExecEvent } from "../../src/index.js";
import { alone, connect, kindOf, setting, workspace } from "./lab.js";

test("how a command ends", async (t) => {
    const box = await alone(t);
    const failed = await box.exec({ command: "echo no >&2; exit 3" });
    assert.deepEqual([failed.exitCode, failed.failed, failed.stderr], [3, true, "no\n"]);
    const late = await box.exec({ command: "sleep 7011", timeoutMs: 200 });
    assert.deepEqual([late.timedOut, late.exitCode, late.signal], [true, null, "SIGTERM"]);
    const given = await box.exec({ argv: ["sh", "-c", 'cat; echo "$N $B $S"; pwd'], stdin: "in\n", env: { N: 1, B: true }, secrets: { S: "secret" }, cwd: "." });
    assert.equal(given.stdout, "in\n1 true secret\n/home\n");
    const bytes = await box.exec({ command: "od -An -tx1", stdin: new Uint8Array([0, 255, 10]) });
    assert.equal(bytes.stdout.trim(), "00 ff 0a");
    const much = await box.exec({ command: "head -c 1500000 /dev/zero | tr '\\0' x" });
    assert.deepEqual([much.truncated, much.stdout.length], [true, 1_000_000]);
});

test("a stream gives all output as it comes", async (t) => {
    const box = await alone(t);
    await box.exec({ command: "mkfifo /tmp/go-on" });
    const events: ExecEvent[] = [];
    for await (const event of box.execStream({ command: "echo one; cat /tmp/go-on; printf '\\377' >&2; exit 4" })) {
        events.push(event);
        // The command waits for this: what it has printed before has to come meanwhile.
        if (event.type === "stdout" && event.text === "one\n") await box.exec({ command: "echo two > /tmp/go-on" });
    }
    assert.equal(events[0]?.type, "start");
    const of = (type: string) => events.filter((event) => event.type === type);
    assert.deepEqual(of("stdout"), ["one\n", "two\n"].map((text) => ({ type: "stdout", text, data: Buffer.from(text) })));
    assert.deepEqual(of("stderr"), [{ type: "stderr", text: "\ufffd", data: Buffer.from([0xff]) }]);
    const exit = events.at(-1);
    assert(exit?.type === "exit" && exit.result.exitCode === 4);

    let bytes = 0;
    for await (const event of box.execStream({ command: "head -c 30000000 /dev/urandom" })) {
        if (event.type === "stdout") bytes += event.data.length;
    }
    assert.equal(bytes, 30_000_000);
    assert.equal(await kindOf(box.execStream({ command: "true", cwd: "/etc" }).next()), "denied");
});

test("callbacks get output while the command runs", async (t) => {
    const box = await alone(t);
    await box.exec({ command: "mkfifo /tmp/go-on" });
    const seen: string[] = [];
    const result = await box.exec({
        command: "echo ask; read -r answer < /tmp/go-on; echo got $answer >&2",
        onStdout: async (text) => {
            seen.push("out " + text);
            await box.exec({ command: "echo 42 > /tmp/go-on" });
        },
        onStderr: (text) => void seen.push("err " + text),
    });
    assert.deepEqual(seen, ["out ask\n", "err got 42\n"]);
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["ask\n", "got 42\n", 0]);
});

/** gone waits until no process of the user's warm container has these arguments. */
async function gone(box: Sandbox, args: string): Promise<void> {
    const found = await box.exec({ command: `for i in $(seq 1000); do pgrep -fx '${args}' >/dev/null || exit 0; sleep 0.02; done; exit 1` });
    assert.equal(found.exitCode, 0, `${args} still runs`);
}

test("a signal, and leaving a stream, end the command", async (t) => {
    const box = await alone(t);
    const runs = "until pgrep -fx 'sleep 7012'; do sleep 0.02; done";
    const abort = new AbortController();
    const call = box.exec({ command: "sleep 7012 & wait", signal: abort.signal });
    await box.exec({ command: runs });
    abort.abort(new Error("not any more"));
    await assert.rejects(call, /not any more/);
    await gone(box, "sleep 7012");
    for await (const event of box.execStream({ command: "sleep 7012 & echo runs; wait" })) {
        if (event.type === "stdout") break;
    }
    await gone(box, "sleep 7012");
    const client = connect(t);
    const other = await Sandbox.open(client, { id: box.id, userId: box.userId });
    const closed = kindOf(other.exec({ command: "sleep 7012" }));
    await box.exec({ command: runs });
    client.close();
    assert.equal(await closed, "closed");
    await gone(box, "sleep 7012");
});

test("many commands at once", async (t) => {
    const box = await alone(t);
    const outputs = await Promise.all(Array.from({ length: 100 }, (_, n) => box.exec({ argv: ["echo", String(n)], permissions: workspace })));
    assert.deepEqual(outputs.map((output) => output.stdout), Array.from({ length: 100 }, (_, n) => `${n}\n`));
});

test("what a call may reach, and what is told of it", async (t) => {
    const [allowed, denied] = [setting("SANDBOX_TEST_ALLOWED"), setting("SANDBOX_TEST_DENIED")];
    const box = await alone(t, { permissions: { network: true } });
    const client = connect(t);
    const followed = client.followDecisions({ userId: box.userId, limit: 0 });
    let follows = false;
    const first = followed.next().finally(() => (follows = true));
    do {
        // What is decided before the service follows is not told; so this is decided again until something is.
        const got = await box.exec({ command: `curl -sS --max-time 20 http://${allowed}/hello`, permissions: ["@network"], allowedDomains: [allowed] });
        assert.equal(got.stdout.trim(), `hello from ${allowed}`);
    } while (!follows);
    const not = await box.exec({ command: `curl -sS --max-time 20 http://${denied}/hello`, permissions: ["@network"], allowedDomains: [allowed] });
    assert.equal(not.failed, true);
    assert.deepEqual([not.egress[0]?.name, not.egress[0]?.verdict], [denied, "denied"]);
    const decisions = await client.decisions({ userId: box.userId, verdict: "denied", since: new Date(Date.now() - 600_000) });
    assert(decisions.length > 0 && decisions.every((decision) => decision.name === denied));
    const event = (await first).value;
    assert(event !== undefined && "name" in event && event.name === allowed && event.verdict === "allowed");
    await followed.return();
});
