import assert from "node:assert/strict";
import { test } from "node:test";
import { e2b, sandbox } from "./lab.mjs";

const box = await sandbox();

test("git with a remote", { skip: !box.git && "the client has no methods for git" }, async () => {
  const git = box.git;
  await git.configureUser("Anne", "anne@example.org");
  assert.equal(await git.getConfig("user.name"), "Anne");
  await git.init("remote.git", { bare: true, initialBranch: "main" });
  await git.init("mine", { initialBranch: "main" });
  await git.remoteAdd("mine", "origin", "/home/user/remote.git");
  await box.files.write("mine/a.txt", "first\n");
  await git.add("mine");
  await git.commit("mine", "the first one");
  await git.push("mine", { remote: "origin", branch: "main" });
  await git.clone("/home/user/remote.git", { path: "other" });
  assert.equal(await box.files.read("other/a.txt"), "first\n");
  await git.createBranch("other", "topic");
  await box.files.write("other/b.txt", "second\n");
  const status = await git.status("other");
  assert.deepEqual([status.currentBranch, status.fileStatus.map((f) => f.name)], ["topic", ["b.txt"]]);
  assert.deepEqual((await git.branches("other")).branches.toSorted(), ["main", "topic"]);
  await git.add("other");
  await git.commit("other", "the second one");
  await git.push("other", { remote: "origin", branch: "topic" });
  await git.pull("mine", { remote: "origin", branch: "topic" });
  assert.equal(await box.files.read("mine/b.txt"), "second\n");
});

test("git keeps credentials in the sandbox, for its own calls alone", { skip: !box.git?.dangerouslyAuthenticate && "the client cannot" }, async () => {
  await box.git.dangerouslyAuthenticate({ username: "anne", password: "of the test", host: "git.invalid" });
  const kept = await box.commands.run("printf 'protocol=https\\nhost=git.invalid\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill");
  assert.match(kept.stdout, /username=anne\npassword=of the test\n/);
});

test("git says who could not be reached", { skip: !box.git && "the client has no methods for git" }, async () => {
  await assert.rejects(box.git.clone("https://git.invalid/x.git", { path: "never" }), (e) => {
    assert.ok(e instanceof e2b.CommandExitError, e);
    assert.match(e.stderr, /unable to access 'https:\/\/git\.invalid\/x\.git\/'/);
    return true;
  });
});
