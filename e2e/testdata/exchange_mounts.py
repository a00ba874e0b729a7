# Exchanges a directory for a link to outside, and a file for a link to nothing there, while a container is made that
# hides what is in them: from when the last of its mount points appears (w/z0, w/z1 and so on), for a while each.
import os
import random
import sys
import time

outside, rounds = sys.argv[1], int(sys.argv[2])
os.chdir("/home")
os.symlink(outside, "x.link")
os.symlink(outside + "/made", "f.link")
exchanges = made = 0


def rename(one, other):
    """Also where somebody has made something under the name meanwhile."""
    global made
    while True:
        try:
            os.rename(one, other)
            return
        except OSError:
            made += 1
        try:
            os.rename(other, "made-%d" % made)
        except OSError:
            pass


def spin(longest):
    end = time.monotonic() + random.random() * longest
    while time.monotonic() < end:
        pass


def exchange(name, longest):
    global exchanges
    rename(name, "aside")
    rename(name + ".link", name)
    spin(longest)
    rename(name, name + ".link")
    rename("aside", name)
    spin(longest)
    exchanges += 1


print("begun", flush=True)
for n in range(rounds):
    while not os.path.lexists("w/z%d" % n):
        pass
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        exchange("x", 0.001)
        exchange("f", 0)
    print("rests", flush=True)
print("exchanges:", exchanges, "made in the way:", made)
