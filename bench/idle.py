"""Opens TLS connections, uses each once, says how many are open, and keeps them until it is ended."""
import resource
import socket
import ssl
import sys
import time

addr, name, ca, count = sys.argv[1:]
count = int(count)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
context = ssl.create_default_context(cafile=ca)
request = ("GET /hello HTTP/1.1\r\nHost: " + name + "\r\n\r\n").encode()
connections = []
for _ in range(count):
    plain = socket.create_connection((addr, 443), 20)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each request waits for an ACK
    secure = context.wrap_socket(plain, server_hostname=name)
    secure.sendall(request)
    if not secure.recv(4096).startswith(b"HTTP/1.1 200 "):
        sys.exit("no answer on connection %d" % len(connections))
    connections.append(secure)
print(len(connections), flush=True)
time.sleep(600)
