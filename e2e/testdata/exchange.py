# Exchanges a file, its directory and the one above it with links to outside, until /tmp/enough.
import ctypes
import os
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
outside = sys.argv[1]
os.chdir("/home")
pairs = [("a/b/file", "file.link", outside + "/file"), ("a/b", "b.link", outside), ("a", "a.link", outside)]
for _, link, target in pairs:
    os.symlink(target, link)
count, atomic = 0, 0


def exchange(one, other):
    global atomic
    if libc.syscall(316, -100, one.encode(), -100, other.encode(), 2) == 0:
        atomic += 1
        return
    os.rename(one, "aside")
    os.rename(other, one)
    os.rename("aside", other)


print("begun", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    for one, link, _ in pairs:
        for _ in range(2):  # there and back
            try:
                exchange(one, link)
                count += 1
            except OSError:
                pass
    time.sleep(0.0005)  # who changes a home's names without end loses the container
print("exchanges:", count, "of them atomic:", atomic)
