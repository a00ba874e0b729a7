import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually, sandbox } from "./lab.mjs";

// The settings allow root. It is only there under gVisor.
const box = await sandbox({ allowInternetAccess: false });
const root = { user: "root" };
const gvisor = { skip: process.env.E2B_TEST_RUNTIME !== "runsc" && "the runtime is not gVisor" };

test("root is refused where the runtime is not gVisor", { skip: !gvisor.skip && "it is" }, async () => {
  await assert.rejects(box.commands.run("id", root), /e2b\.allowRoot.*gVisor/);
  await assert.rejects(box.files.write("f", "", root), /e2b\.allowRoot/);
});

test("commands of root's", gvisor, async () => {
  const { stdout } = await box.commands.run("id; echo $HOME $USER; pwd; grep -h CapEff /proc/self/status", root);
  assert.equal(stdout, "uid=0(root) gid=0(root) groups=0(root)\n/root root\n/root\nCapEff:\t00000000a00005fb\n");
});

test("root changes what is the image's, and user does not", gvisor, async () => {
  await assert.rejects(box.commands.run("touch /usr/local/bin/mine"), /ermission denied|exit status 1/);
  await box.commands.run("printf '#!/bin/sh\\necho by root\\n' > /usr/local/bin/mine; chmod 755 /usr/local/bin/mine; chown user ~user", root);
  assert.equal((await box.commands.run("mine")).stdout, "by root\n");
  await assert.rejects(box.commands.run("cp /bin/sh /home/user/sh && chmod 4755 sh && ./sh -p -c 'cat /etc/shadow'"));
});

test("user does not become root by a program of root's", gvisor, async () => {
  await box.commands.run("cp /usr/bin/id /usr/local/bin/asroot; chmod 6755 /usr/local/bin/asroot; setcap cap_setuid,cap_dac_override+ep /usr/local/bin/asroot || true", root);
  assert.equal((await box.commands.run("asroot -u; id -u")).stdout.split("\n").filter((uid) => uid === "0").length, 0);
});

test("files of root's", gvisor, async () => {
  await box.files.write("secret", "root's", root);
  const info = await box.files.getInfo("secret", root);
  assert.deepEqual([info.path, info.owner], ["/root/secret", "root"]);
  assert.equal(await box.files.read("/root/secret", root), "root's");
  await box.commands.run("chmod 700 /root", root);
  await assert.rejects(box.files.read("/root/secret"), /denied/);
  await box.files.write("/home/user/of-root", "kept", root);
  await box.commands.run("chmod 600 /home/user/of-root", root);
  await assert.rejects(box.files.read("of-root"), /denied/);
  assert.equal(await box.files.read("/home/user/of-root", root), "kept");
  await box.files.remove("/home/user/of-root", root);
  assert.equal(await box.files.exists("of-root"), false);
});

test("what root writes is in the metrics", gvisor, async () => {
  const made = await sandbox({ allowInternetAccess: false });
  await made.commands.run("head -c 64000000 /dev/urandom > /opt/large", root);
  const [metric] = await made.getMetrics();
  assert(metric.diskUsed >= 64_000_000 && metric.diskUsed < 200_000_000 && metric.diskTotal > metric.diskUsed, JSON.stringify(metric));
});

test("a terminal of root's", gvisor, async () => {
  let seen = "";
  const handle = await box.pty.create({ cols: 80, rows: 24, onData: (data) => void (seen += new TextDecoder().decode(data)), ...root });
  await box.pty.sendInput(handle.pid, new TextEncoder().encode("echo it is $(id -un) $(stty size)\n"));
  await eventually(() => seen.includes("it is root 24 80"), "the shell is root's");
  await box.pty.kill(handle.pid);
});
