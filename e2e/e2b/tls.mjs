// All by name and over TLS, as E2B_DOMAIN alone has it: every name below it leads to this host.
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "undici";
import { eventually, Sandbox } from "./lab.mjs";

// A program that answers with what it was asked, and says once what it hears over a WebSocket.
const program = `
import base64, hashlib, http.server
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        key = self.headers.get("Sec-WebSocket-Key")
        if not key:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(str(self.headers).encode())
            return
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        self.wfile.write(("HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Accept: " + accept + "\\r\\n\\r\\n").encode())
        length = self.rfile.read(2)[1] & 127
        mask, data = self.rfile.read(4), self.rfile.read(length)
        said = bytes(b ^ mask[i % 4] for i, b in enumerate(data)).upper()
        self.wfile.write(bytes([0x81, len(said)]) + said)
        self.rfile.read(2)
        self.close_connection = True
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
`;

test("the client, a port and a WebSocket, by names and over TLS", async () => {
  assert.equal(process.env.E2B_API_URL ?? process.env.E2B_SANDBOX_URL, undefined);
  const box = await Sandbox.create({ timeoutMs: 120_000, allowInternetAccess: false });
  try {
    await box.files.write("program.py", program);
    await box.commands.run("python3 program.py", { background: true, timeoutMs: 0 });
    assert.equal(box.getHost(8000), `8000-${box.sandboxId}.${process.env.E2B_DOMAIN}`);
    const seen = await eventually(async () => {
      const res = await fetch(`https://${box.getHost(8000)}/`);
      return res.status === 200 && res.text();
    }, "the program listens");
    assert.match(seen, /^X-Forwarded-Proto: https/m);
    const socket = new WebSocket(`wss://${box.getHost(8000)}/`);
    const said = await new Promise((done, fail) => {
      socket.onopen = () => socket.send("hello");
      socket.onmessage = (event) => done(event.data);
      socket.onerror = (event) => fail(event.error);
    });
    assert.equal(said, "HELLO");
    socket.close();
    assert.equal(await (await fetch(await box.downloadUrl("program.py"))).text(), program);
  } finally {
    await box.kill();
  }
});
