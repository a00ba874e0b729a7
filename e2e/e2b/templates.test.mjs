import assert from "node:assert/strict";
import { test } from "node:test";
import { e2b, Sandbox, sandbox } from "./lab.mjs";

// The templates are those of the service's settings; "web" serves its own folder, and is ready when it is served.
test("a template with a start command is ready when its ready command says so", async () => {
  const box = await sandbox("web");
  assert.equal((await box.getInfo()).templateId, "web");
  const { stdout } = await box.commands.run("curl -sS localhost:8080/made; cat ready; echo $OF");
  assert.equal(stdout, "at the start\n/dev/null\n/dev/null\nthe template\n"); // the stdin of both
  const started = (await box.commands.list()).find((p) => JSON.stringify(p.args).includes("http.server"));
  assert(started, "the start command goes on");
});

test("a template that is never ready", async () => {
  await assert.rejects(Sandbox.create("never"), /its ready command (ended with 1|has not ended)/);
});

test("a template whose image is not here, which no call gets", async () => {
  await assert.rejects(Sandbox.create("absent"), /registry\.invalid\/absent:1 is not here: the operator can get it with `sandbox template add/);
});

test("what the creator says is above the template", async () => {
  const box = await sandbox("web", { envs: { OF: "the creator" } });
  assert.equal((await box.commands.run("echo $OF")).stdout, "the creator\n");
});

test("whether there is a template", async () => {
  const is = ["base", "web", "unheard-of"].map((name) => e2b.Template.exists(name));
  assert.deepEqual(await Promise.all(is), [true, true, false]);
});

test("a template has one tag", async () => {
  assert.deepEqual((await e2b.Template.getTags("web")).map((t) => t.tag), ["default"]);
  await assert.rejects(e2b.Template.getTags("unheard-of"), /404/);
  assert.equal((await (await sandbox("web:default")).getInfo()).templateId, "web");
});

test("what there is not is not taken for what is missing", async () => {
  await assert.rejects(e2b.Secret.getInfo("none"), /501: this service has no secrets/);
  await assert.rejects(e2b.Template.assignTags("base", "v1"), /501: this service has no templates that are built/);
});

test("an unknown template is not found, and none is listed", async () => {
  await assert.rejects(Sandbox.create("unheard-of"), (err) => /not found/.test(err.message) && !/web|never/.test(err.message));
});
