"""Connects by TCP and TLS, and prints how long each connection took, in nanoseconds."""
import socket
import ssl
import sys
import time

addr, name, ca, before, count = sys.argv[1:]
context = ssl.create_default_context(cafile=ca or None)

for i in range(int(before) + int(count)):
    begun = time.perf_counter_ns()
    plain = socket.create_connection((addr, 443), 20)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    secure = context.wrap_socket(plain, server_hostname=name)
    ended = time.perf_counter_ns()
    secure.close()
    if i >= int(before):
        print(ended - begun)
