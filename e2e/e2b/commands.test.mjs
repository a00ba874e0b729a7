import assert from "node:assert/strict";
import { test } from "node:test";
import { before, e2b, eventually, sandbox } from "./lab.mjs";

const box = await sandbox({ envs: { OF_THE_SANDBOX: "one", BOTH: "sandbox" } });

test("a command's output, status and errors", async () => {
  const result = await box.commands.run("echo out; echo err >&2");
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [0, "out\n", "err\n"]);
});

test("a command without input reads /dev/null", async () => {
  assert.equal((await box.commands.run("readlink /proc/self/fd/0")).stdout, "/dev/null\n");
});

test("a status that is not 0 is an error with the output", async () => {
  await assert.rejects(box.commands.run("echo before; exit 7"), (err) => {
    assert(err instanceof e2b.CommandExitError, err.constructor.name);
    assert.deepEqual([err.exitCode, err.stdout], [7, "before\n"]);
    return true;
  });
});

test("a command that there is not", async () => {
  await assert.rejects(box.commands.run("no-such-command"), (err) => err.exitCode === 127);
});

test("output comes while the command runs", async () => {
  const seen = [];
  const command = await box.commands.run("echo one; read line; echo two", { background: true, stdin: true, onStdout: (data) => void seen.push(data) });
  await eventually(() => seen.length > 0, "the first output");
  await box.commands.sendStdin(command.pid, "go on\n");
  await command.wait();
  assert.equal(seen.join(""), "one\ntwo\n");
  assert(seen.length >= 2, `${seen.length} pieces`);
});

test("the environment is the sandbox's and then the command's", async () => {
  const result = await box.commands.run('echo "$OF_THE_SANDBOX $BOTH $OWN"', { envs: { OWN: "two", BOTH: "command" } });
  assert.equal(result.stdout, "one command two\n");
});

test("commands begin at home", async () => {
  assert.equal((await box.commands.run("pwd")).stdout, "/home/user\n");
  assert.equal((await box.commands.run("cd ~ && pwd")).stdout, "/home/user\n");
});

test("a directory to begin in", async () => {
  await box.commands.run("mkdir -p deep/er");
  assert.equal((await box.commands.run("pwd", { cwd: "/home/user/deep/er" })).stdout, "/home/user/deep/er\n");
});

test("a directory that there is not", async () => {
  await assert.rejects(box.commands.run("pwd", { cwd: "/home/user/none" }));
});

test("a large output is whole", async () => {
  const result = await box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x");
  assert.equal(result.stdout.length, 3_000_000);
});

test("what drains when the shell ends arrives", async () => {
  for (let i = 0; i < 10; i++) {
    assert.equal((await box.commands.run("echo a > >(cat)")).stdout, "a\n");
    assert.equal((await box.commands.run("exec > >(tee ~/log) 2>&1; seq 3")).stdout, "1\n2\n3\n");
  }
});

test("a command line longer than an argument may be", async () => {
  const text = "x".repeat(200 << 10);
  assert.equal((await box.commands.run(`wc -c <<'EOF'\n${text}\nEOF`)).stdout, `${text.length + 1}\n`);
  await assert.rejects(box.commands.run("true", { envs: { LONG: text } }), /LONG has 204805 bytes with its name, and Linux takes at most 131071/);
});

test("characters that are cut in two come whole", { skip: before && "the older client puts them together wrongly" }, async () => {
  const result = await box.commands.run("printf '\\303'; sleep 0.1; printf '\\244\\n'");
  assert.equal(result.stdout, "ä\n");
});

test("a timeout ends the command", async () => {
  await assert.rejects(box.commands.run("echo $$ > timed; sleep 4713", { timeoutMs: 1000 }), e2b.TimeoutError);
  await eventually(async () => (await box.commands.run("kill -0 $(cat timed) 2>/dev/null || echo gone")).stdout === "gone\n", "the command has ended");
});

test("in the background", async () => {
  const command = await box.commands.run("echo begun; sleep 0.2; echo done; exit 3", { background: true });
  assert(command.pid > 0);
  await assert.rejects(command.wait(), (err) => err.exitCode === 3 && err.stdout === "begun\ndone\n");
});

test("kill", async () => {
  const command = await box.commands.run("sleep 4714", { background: true });
  assert.equal(await command.kill(), true);
  await assert.rejects(command.wait(), e2b.CommandExitError);
  assert.equal(await box.commands.kill(command.pid), false);
});

test("kill of none", async () => {
  assert.equal(await box.commands.kill(999_999), false);
});

test("list", async () => {
  const command = await box.commands.run("sleep 4715", { background: true, envs: { MARK: "listed" }, cwd: "/home/user" });
  const found = (await box.commands.list()).find((p) => p.pid === command.pid);
  assert.equal(found.cmd, "/bin/bash");
  assert.deepEqual(found.args, ["-l", "-c", "sleep 4715"]);
  assert.equal(found.envs.MARK, "listed");
  assert.equal(found.cwd, "/home/user");
  await command.kill();
  await eventually(async () => !(await box.commands.list()).some((p) => p.pid === command.pid), "it is not listed");
});

test("connect to a command that runs", async () => {
  const command = await box.commands.run("read line; echo got $line", { background: true, stdin: true });
  const other = await box.commands.connect(command.pid);
  assert.equal(other.pid, command.pid);
  await box.commands.sendStdin(command.pid, "this\n");
  assert.equal((await other.wait()).stdout, "got this\n");
  assert.equal((await command.wait()).stdout, "got this\n");
});

test("connect to none", async () => {
  await assert.rejects(box.commands.connect(999_999), e2b.NotFoundError);
});

test("who leaves ends nothing", async () => {
  const command = await box.commands.run("sleep 0.5; echo still > left", { background: true });
  await command.disconnect();
  await eventually(async () => await box.files.exists("left"), "the command goes on");
});

test("what a command leaves running goes on", async () => {
  await box.commands.run("nohup sh -c 'sleep 0.5; echo on > behind' > /dev/null 2>&1 &");
  await eventually(async () => await box.files.exists("behind"), "the program goes on");
});

test("stdin", async () => {
  const command = await box.commands.run("cat", { background: true, stdin: true });
  await box.commands.sendStdin(command.pid, "one ");
  await box.commands.sendStdin(command.pid, "two");
  await box.commands.closeStdin(command.pid);
  assert.equal((await command.wait()).stdout, "one two");
});

test("a command has no stdin unless it asks for it", async () => {
  assert.equal((await box.commands.run("cat; echo end")).stdout, "end\n");
});

test("stdin of none", async () => {
  await assert.rejects(box.commands.sendStdin(999_999, "x"), e2b.NotFoundError);
});

test("many at once", async () => {
  const results = await Promise.all(Array.from({ length: 20 }, (_, i) => box.commands.run(`echo ${i}`)));
  assert.deepEqual(results.map((r) => Number(r.stdout)), Array.from({ length: 20 }, (_, i) => i));
});

test("more commands than may run", async () => {
  const full = await sandbox({ allowInternetAccess: false });
  const most = Number(process.env.E2B_TEST_MOST_COMMANDS);
  const refused = before ? e2b.SandboxError : e2b.RateLimitError;
  for (let i = 0; i < most; i++) await full.commands.run("exec sleep 4719", { background: true, timeoutMs: 0 });
  await assert.rejects(full.commands.run("true"), refused);
  await full.commands.kill((await full.commands.list())[0].pid);
  await eventually(() => full.commands.run("true").catch((err) => assert(err instanceof refused, err)), "one more may run");
});

test("the user is user", async () => {
  assert.equal((await box.commands.run("echo ok", { user: "user" })).stdout, "ok\n");
});

test("users that there are not", async () => {
  await assert.rejects(box.commands.run("id", { user: "nobody-here" }));
});
