"""Makes many connections with a request each, and keeps them for a while."""
import http.client
import ssl
import sys
import time

name, count = sys.argv[1:]
context = ssl.create_default_context()
kept = []
for i in range(int(count)):
    connection = http.client.HTTPSConnection(name, context=context, timeout=60)
    connection.request("GET", "/hello")
    connection.getresponse().read()
    kept.append(connection)
time.sleep(10)
