import assert from "node:assert/strict";
import { test } from "node:test";
import { before, e2b, eventually, sandbox } from "./lab.mjs";

const box = await sandbox();

test("text", async () => {
  const written = await box.files.write("text.txt", "öne\n");
  assert.equal(written.path, "/home/user/text.txt");
  assert.equal(written.name, "text.txt");
  assert.equal(await box.files.read("text.txt"), "öne\n");
  assert.equal((await box.commands.run("cat text.txt")).stdout, "öne\n");
});

test("what commands write is read", async () => {
  await box.commands.run("echo from a command > command.txt");
  assert.equal(await box.files.read("/home/user/command.txt"), "from a command\n");
});

test("bytes", async () => {
  const bytes = new Uint8Array(70_000).map((_, i) => i % 256);
  await box.files.write("bytes", bytes.buffer);
  assert.deepEqual(await box.files.read("bytes", { format: "bytes" }), bytes);
  assert.equal((await (await box.files.read("bytes", { format: "blob" })).arrayBuffer()).byteLength, 70_000);
});

test("streams", async () => {
  await box.files.write("stream", new Blob(["a".repeat(200_000)]).stream());
  let size = 0;
  for await (const piece of await box.files.read("stream", { format: "stream" })) size += piece.length;
  assert.equal(size, 200_000);
});

test("gzip", { skip: before && "the older client cannot" }, async () => {
  await box.files.write("packed", "b".repeat(100_000), { gzip: true });
  assert.equal((await box.commands.run("wc -c < packed")).stdout.trim(), "100000");
  assert.equal(await box.files.read("packed", { gzip: true }), "b".repeat(100_000));
});

test("metadata of a file is refused", { skip: before && "the older client knows none" }, async () => {
  await assert.rejects(box.files.write("with-metadata", "x", { metadata: { of: "whom" } }), /^SandboxError: 501: .*metadata of files/);
  assert.equal(await box.files.exists("with-metadata"), false);
});

test("an empty file", async () => {
  await box.files.write("empty", "");
  assert.equal(await box.files.read("empty"), "");
});

test("a file is replaced", async () => {
  await box.files.write("twice", "long content");
  await box.files.write("twice", "short");
  assert.equal(await box.files.read("twice"), "short");
});

test("directories are made on the way", async () => {
  await box.files.write("a/b/c.txt", "x");
  assert.equal(await box.files.read("/home/user/a/b/c.txt"), "x");
});

test("many files", async () => {
  const written = await box.files.write([{ path: "many/1", data: "one" }, { path: "/home/user/many/2", data: "two" }]);
  assert.deepEqual(written.map((w) => w.path), ["/home/user/many/1", "/home/user/many/2"]);
  assert.equal(await box.files.read("many/2"), "two");
});

test("a file that there is not", async () => {
  await assert.rejects(box.files.read("none"), e2b.NotFoundError);
  assert.equal(await box.files.exists("none"), false);
  await assert.rejects(box.files.getInfo("none"), e2b.NotFoundError);
  await assert.rejects(box.files.list("none"), e2b.NotFoundError);
});

test("a directory is no file", async () => {
  await box.files.makeDir("is-dir");
  await assert.rejects(box.files.read("is-dir"));
  await assert.rejects(box.files.write("is-dir", "x"));
});

test("list", async () => {
  await box.files.write("list/file", "12345");
  await box.files.makeDir("list/dir");
  await box.files.write("list/dir/deeper", "");
  const entries = await box.files.list("list");
  assert.deepEqual(entries.map((e) => [e.name, e.type, e.path]), [
    ["dir", "dir", "/home/user/list/dir"],
    ["file", "file", "/home/user/list/file"],
  ]);
  assert.equal(entries[1].size, 5);
  assert.equal((await box.files.list("list", { depth: 2 })).length, 3);
});

test("list of a file", async () => {
  await box.files.write("no-list", "");
  await assert.rejects(box.files.list("no-list"), e2b.InvalidArgumentError);
});

test("getInfo", async () => {
  await box.files.write("info", "1234");
  await box.commands.run("chmod 640 info && ln -s info link");
  const info = await box.files.getInfo("info");
  assert.deepEqual([info.name, info.type, info.size, info.mode, info.permissions, info.owner, info.group],
    ["info", "file", 4, 0o640, "-rw-r-----", "user", "user"]);
  assert(Math.abs(Date.now() - info.modifiedTime.getTime()) < 120_000);
  const link = await box.files.getInfo("link");
  assert.deepEqual([link.type, link.mode, link.symlinkTarget], ["file", 0o640, "/home/user/info"]);
  await box.commands.run("mkdir -p kinds/dir && cd kinds && ln -s dir to-dir && ln -s ../info to-file && ln -s none to-none && mkfifo fifo");
  assert.deepEqual((await box.files.list("kinds")).map((e) => [e.name, e.type, e.symlinkTarget]), [
    ["dir", "dir", undefined], ["to-dir", "dir", "/home/user/kinds/dir"], ["to-file", "file", "/home/user/info"],
    ...(before ? [] : [["to-none", "symlink", "/home/user/kinds/none"]]), // the older client knows no links that lead nowhere
  ]);
  assert((await box.files.getInfo("kinds/dir")).size > 0);
  assert.equal(await box.files.exists("kinds/fifo"), true);
});

test("makeDir", async () => {
  assert.equal(await box.files.makeDir("new/dir"), true);
  assert.equal(await box.files.makeDir("new/dir"), false);
  assert.equal((await box.files.getInfo("new/dir")).type, "dir");
});

test("rename", async () => {
  await box.files.write("old-name", "x");
  const info = await box.files.rename("old-name", "moved/new-name");
  assert.equal(info.path, "/home/user/moved/new-name");
  assert.equal(await box.files.exists("old-name"), false);
  await assert.rejects(box.files.rename("old-name", "y"), e2b.NotFoundError);
});

test("rename replaces", async () => {
  await box.files.write("from", "new");
  await box.files.write("to", "old");
  await box.files.rename("from", "to");
  assert.equal(await box.files.read("to"), "new");
});

test("remove", async () => {
  await box.files.write("gone/a/b", "x");
  await box.files.remove("gone");
  assert.equal(await box.files.exists("gone"), false);
  await box.files.remove("gone");
});

test("names with any characters", async () => {
  const name = 'na me "quo\'te" ü&?#%+;=/x';
  await box.files.write(name, "x");
  assert.equal(await box.files.read(name), "x");
  assert.equal((await box.files.list('na me "quo\'te" ü&?#%+;='))[0].name, "x");
});

test("signed URLs", async () => {
  await box.files.write("signed", "by URL");
  const url = await box.downloadUrl("signed");
  assert.equal(await (await fetch(url)).text(), "by URL");
  assert.equal((await fetch(url.replace("signature=v1_", "signature=v1_x"))).status, 401);
  assert.equal((await fetch(url.replace("path=signed", "path=text.txt"))).status, 401);
  assert.equal((await fetch(await box.downloadUrl("signed", { useSignatureExpiration: 60 }))).status, 200);
  assert.equal((await fetch(await box.downloadUrl("signed", { useSignatureExpiration: -60 }))).status, 401);
});

test("signed uploads", async () => {
  const form = new FormData();
  form.append("file", new Blob(["sent"]), "ignored");
  const res = await fetch(await box.uploadUrl("uploaded"), { method: "POST", body: form });
  assert.equal(res.status, 200, await res.clone().text());
  assert.equal(await box.files.read("uploaded"), "sent");
  assert.equal((await fetch(await box.downloadUrl("uploaded"), { method: "POST", body: form })).status, 401);
});

test("a user that there is not has no files", async () => {
  await assert.rejects(box.files.read("text.txt", { user: "nobody" }), /nobody/);
});

test("outside of the home", async () => {
  await box.files.write("/tmp/elsewhere/file", "there");
  assert.equal(await box.files.read("/tmp/elsewhere/file"), "there");
  assert.equal((await box.files.list("/tmp/elsewhere"))[0].path, "/tmp/elsewhere/file");
  assert.equal((await box.files.getInfo("/tmp/elsewhere/file")).size, 5);
  await box.files.rename("/tmp/elsewhere/file", "/tmp/elsewhere/other");
  await box.files.remove("/tmp/elsewhere");
  assert.equal(await box.files.exists("/tmp/elsewhere"), false);
  assert.match(await box.files.read("/etc/hostname"), /./);
  await assert.rejects(box.files.read("/etc/shadow"));
  await assert.rejects(box.files.read("/no/such"), e2b.NotFoundError);
});

test("what is missing outside of the home is made, and is the user's", async () => {
  await box.files.write("/workspace/src/a.txt", "a");
  assert.equal(await box.files.makeDir("/app"), true);
  assert.equal(await box.files.makeDir("/app"), false);
  await box.files.makeDir("/opt/tool/bin");
  await box.files.write("/etc/mine.conf", "mine");
  await box.files.rename("/workspace/src", "/srv/moved/src");
  const own = "/workspace /app /opt/tool /opt/tool/bin /etc/mine.conf /srv/moved /srv/moved/src/a.txt";
  const found = await box.commands.run(`cd /workspace && touch by-command && stat -c '%U %a %n' ${own} && cat /etc/mine.conf`);
  assert.equal(found.stdout, own.split(" ").map((at) => `user ${at.includes(".") ? 644 : 755} ${at}\n`).join("") + "mine");
  assert.match((await box.commands.run("stat -c '%U %a' / /opt /etc /srv; ! ls -a / /opt /etc /srv | grep daycare-")).stdout.replaceAll("root 755\n", ""), /^$/);
});

test("what is root's, or no file system of the sandbox's, stays so", async () => {
  await assert.rejects(box.files.write("/etc/passwd", "x"));
  await assert.rejects(box.files.write("/proc/x", "x"));
  await assert.rejects(box.files.makeDir("/sys/x"));
  await box.commands.run("ln -sfn /etc to-etc");
  await assert.rejects(box.files.write("to-etc/by-a-link", "x"));
});

test("a link leads to where it leads inside", async () => {
  await box.commands.run("ln -sfn /etc/passwd to-passwd && mkdir -p real && echo x > real/f && ln -sfn real to-dir");
  assert.equal(await box.files.read("to-passwd"), (await box.commands.run("cat /etc/passwd")).stdout);
  assert.equal(await box.files.read("to-dir/f"), "x\n");
  await box.files.write("to-dir/g", "y");
  assert.equal(await box.files.read("real/g"), "y");
  assert.equal((await box.files.list("to-dir")).length, 2);
});

test("no directory of the home has a meaning of its own", async () => {
  for (const dir of ["apps", ".ssh", ".config"]) {
    await box.files.write(`${dir}/file`, "x");
    assert.equal((await box.commands.run(`cat ${dir}/file`)).stdout, "x");
    assert.equal(await box.files.read(`${dir}/file`), "x");
  }
});

test("watchDir", async () => {
  await box.files.makeDir("watched/deep");
  await box.files.write("watched/file", "x");
  const seen = [];
  const handle = await box.files.watchDir("watched", (event) => void seen.push(`${event.type} ${event.name}`), { recursive: true, timeoutMs: 60_000 });
  const has = (event) => eventually(() => seen.includes(event), `${event}, among ${seen}`);
  await box.files.write("watched/file", "y");
  await has("write file");
  await box.commands.run("echo z > watched/deep/by-command; chmod 600 watched/file; mv watched/file watched/moved; rm watched/deep/by-command");
  for (const event of ["create deep/by-command", "write deep/by-command", "chmod file", "rename file", "create moved", "remove deep/by-command"]) await has(event);
  await handle.stop();
});

test("watchDir with entries", { skip: before && "the older client knows none" }, async () => {
  await box.files.makeDir("watched-entries");
  const seen = [];
  const handle = await box.files.watchDir("watched-entries", (event) => void seen.push(event), { includeEntry: true, allowNetworkMounts: true });
  await box.files.write("watched-entries/new", "12345");
  await eventually(() => seen.some((e) => e.name === "new" && e.entry?.size === 5 && e.entry.path === "/home/user/watched-entries/new"), "the entry");
  await box.files.remove("watched-entries/new");
  await eventually(() => seen.some((e) => e.type === "remove" && e.entry === undefined), "none of what is gone");
  await handle.stop();
});

test("watchDir of none", async () => {
  await assert.rejects(box.files.watchDir("none", () => {}), e2b.NotFoundError);
});
