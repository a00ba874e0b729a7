import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";
import { before, eventually, Sandbox, sandbox } from "./lab.mjs";

// A program that answers with what it was asked, streams, and echoes what comes after an upgrade.
const program = `
import http.server, threading
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])).upper())
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n")
            while line := self.rfile.readline():
                self.wfile.write(b"you said " + line)
            self.close_connection = True
        elif self.path == "/stream":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"first\\n")
            open("/tmp/go-on").read()
            self.wfile.write(b"second\\n")
        else:
            self.answer((self.path + "\\n" + str(self.headers)).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
`;

async function serving(options = {}) {
  const box = await sandbox({ allowInternetAccess: false, ...options });
  await box.files.write("program.py", program);
  await box.commands.run("mkfifo /tmp/go-on; python3 program.py", { background: true });
  const headers = box.trafficAccessToken ? { "e2b-traffic-access-token": box.trafficAccessToken } : {};
  await eventually(async () => (await ask(box, "/", { headers })).status === 200, "the program listens");
  return box;
}

// request sends one to the host that the client names; its name leads to where the service listens.
function request(box, path, { method = "GET", headers = {}, port = 8000 } = {}) {
  const at = new URL(process.env.E2B_SANDBOX_URL);
  return http.request({ host: at.hostname, port: at.port, path, method, agent: false, headers: { ...headers, Host: box.getHost(port) } });
}

function ask(box, path, { body, ...options } = {}) {
  return new Promise((done, fail) => {
    const req = request(box, path, options);
    req.on("error", fail);
    req.on("response", async (res) => {
      try {
        let text = "";
        for await (const piece of res) text += piece;
        done({ status: res.statusCode, text });
      } catch (err) {
        fail(err);
      }
    });
    req.end(body);
  });
}

test("getHost, without a network", async (t) => {
  const box = await serving();
  assert.match(box.getHost(8000), new RegExp(`^8000-${box.sandboxId}\\.`));

  await t.test("headers lead to it as the name does", async () => {
    const headers = { "E2b-Sandbox-Id": box.sandboxId, "E2b-Sandbox-Port": "8000" };
    const res = await fetch(`${process.env.E2B_SANDBOX_URL}/by-headers`, { headers });
    assert.match(await res.text(), /^\/by-headers\n/);
  });

  await t.test("a request as the program gets it", async () => {
    const { status, text } = await ask(box, "/a//b?c=d%20e", { headers: { "X-Forwarded-Proto": "https", Cookie: "a=b", "E2b-Traffic-Access-Token": "x" } });
    assert.equal(status, 200);
    assert.match(text, /^\/a\/\/b\?c=d%20e\n/);
    assert.match(text, new RegExp(`^Host: ${box.getHost(8000)}\\r?$`, "m"));
    assert.match(text, /^X-Forwarded-Proto: https/m);
    assert.match(text, /^Cookie: a=b/m);
    assert.doesNotMatch(text, /traffic-access-token/i);
  });

  await t.test("a body", async () => {
    const { status, text } = await ask(box, "/", { method: "POST", body: "x".repeat(300_000) });
    assert.equal(status, 200);
    assert.equal(text, "X".repeat(300_000));
  });

  await t.test("what is streamed comes as it is said", async () => {
    const req = request(box, "/stream");
    req.end();
    const res = await new Promise((done, fail) => req.on("response", done).on("error", fail));
    let text = "";
    for await (const piece of res) {
      if (text === "" && String(piece) === "first\n") await box.commands.run("echo > /tmp/go-on");
      text += piece;
    }
    assert.equal(text, "first\nsecond\n");
  });

  await t.test("an upgrade", async () => {
    const req = request(box, "/", { headers: { Connection: "Upgrade", Upgrade: "echo" } });
    req.end();
    const socket = await new Promise((done, fail) => req.on("upgrade", (_, s) => done(s)).on("error", fail));
    socket.write("hello\n");
    const [said] = await socket.take(1).toArray();
    assert.equal(String(said), "you said hello\n");
    socket.destroy();
  });

  await t.test("a port at which nobody listens", async () => {
    const { status, text } = await ask(box, "/", { port: 8001 });
    assert.equal(status, 502);
    assert.equal(JSON.parse(text).sandboxId, box.sandboxId);
    assert.match(text, /8001/);
  });

  await t.test("a sandbox that has ended", async () => {
    await box.kill();
    assert.equal((await ask(box, "/")).status, 502);
  });
});

test("allowPublicTraffic: false wants the traffic token", { skip: before && "the older client tells no token" }, async () => {
  const box = await serving({ network: { allowPublicTraffic: false } });
  const token = box.trafficAccessToken;
  assert.match(token, /^[0-9a-f]{64}$/);
  assert.equal((await ask(box, "/")).status, 403);
  assert.equal((await ask(box, "/", { headers: { "e2b-traffic-access-token": "x" } })).status, 403);
  const { status, text } = await ask(box, "/", { headers: { "e2b-traffic-access-token": token } });
  assert.equal(status, 200);
  assert(!text.includes(token), "the program is not told the token");
});

test("traffic wakes a sandbox that may be resumed, and no other", { skip: before && "the older client cannot say so" }, async () => {
  const box = await serving({ lifecycle: { onTimeout: "pause", autoResume: true } });
  await box.pause();
  assert.equal((await ask(box, "/")).status, 200);
  assert.equal((await Sandbox.getInfo(box.sandboxId)).state, "running");
  const other = await serving({ lifecycle: { onTimeout: "pause", autoResume: false } });
  await other.pause();
  assert.equal((await ask(other, "/")).status, 502);
  assert.equal((await Sandbox.getInfo(other.sandboxId)).state, "paused");
});
