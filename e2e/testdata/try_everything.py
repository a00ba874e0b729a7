# Tries to read and to change each path of $ROWS, in every way that a command has. Whatever works is
# printed; so are, at the end, the things that have to work.
import ctypes
import json
import os
import subprocess

libc = ctypes.CDLL(None, use_errno=True)
rows = json.loads(os.environ["ROWS"])
plain = "/home/plain"
RENAMEAT2, EXCHANGE, CWD = 316, 2, -100
NEWNS, NEWUSER = 0x20000, 0x10000000
BIND, REMOUNT, MOVE, REC, DETACH = 0x1000, 0x20, 0x2000, 0x4000, 2


def attempt(what, action):
    """Prints what has worked, with what came of it unless that is nothing at all."""
    try:
        result = action()
    except (OSError, ValueError):
        return False
    if result is None or result:
        print(what, repr(result)[:200], flush=True)
        return True
    return False


def content(path, dir_fd=None):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        return os.read(fd, 1000)
    finally:
        os.close(fd)


def system(call, *args):
    if call(*args) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def exchange(a, b):
    if libc.syscall(RENAMEAT2, CWD, a.encode(), CWD, b.encode(), EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def look(how, path):
    for name in (path, path + "/key", path + "/sub/key"):
        attempt(f"READ {how} {name}", lambda: content(name))
    for name in (path, path + "/sub"):
        attempt(f"LISTED {how} {name}", lambda: os.listdir(name))


def enter(path):
    here = os.getcwd()
    try:
        os.chdir(path)
        look("entered " + path, ".")
    except OSError:
        pass
    finally:
        os.chdir(here)


def relative(row):
    """Looks from each directory above."""
    here = os.getcwd()
    above = row
    while above != "/":
        above = os.path.dirname(above)
        rest = os.path.relpath(row, above)
        try:
            os.chdir(above)
            look("from " + above, rest)
            look("cwd of " + above, "/proc/self/cwd/" + rest)
            fd = os.open(above, os.O_PATH | os.O_DIRECTORY)
            attempt("READ at " + row, lambda: content(rest, dir_fd=fd))
            look("descriptor of " + above, f"/proc/self/fd/{fd}/{rest}")
            os.close(fd)
        except OSError:
            pass
    os.chdir(here)


def by_alias(row):
    look("directly", row)
    parent, leaf = os.path.split(row)
    for alias in (parent + "/./" + leaf, parent + "//" + leaf, plain + "/../.." + row, row + "/../" + leaf,
                  "/proc/self/root" + row, "/proc/1/root" + row, "/tmp/../" + row, "/tmp/../proc/self/root/" + row):
        look("alias", alias)
    enter(row)
    relative(row)
    for i, place in enumerate(("/tmp", plain, "/home")):
        for target in (row, os.path.relpath(row, place), "/proc/self/root" + row):
            link = f"{place}/link-{i}"
            try:
                os.symlink(target, link)
            except OSError:
                continue
            look("link " + target, link)
            enter(link)
            attempt("WRITE by link " + row, lambda: open(link, "w").write("planted"))
            attempt("WRITE below link " + row, lambda: open(link + "/planted", "w").write("planted"))
            os.unlink(link)


def fresh(name, directory):
    path = f"{plain}/{name}"
    try:
        if directory:
            os.makedirs(path, exist_ok=True)
            open(path + "/planted", "w").write("planted")
        else:
            open(path, "w").write("planted")
    except OSError:
        pass
    return path


def change(row):
    write = lambda name, how: open(name, how).write("planted")
    for how in ("w", "a", "x", "r+"):
        attempt("WRITE " + row, lambda: write(row, how))
        attempt("WRITE below " + row, lambda: write(row + "/planted", how))
        attempt("WRITE key " + row, lambda: write(row + "/key", how))
    attempt("MADE " + row, lambda: os.mkdir(row))
    attempt("MADE below " + row, lambda: os.mkdir(row + "/planted"))
    attempt("MADE with parents " + row, lambda: os.makedirs(row + "/a/b"))
    attempt("FIFO " + row, lambda: os.mkfifo(row))
    attempt("LINKED " + row, lambda: os.symlink(plain, row))
    attempt("LINKED below " + row, lambda: os.symlink(plain, row + "/planted"))
    attempt("HARD LINKED to " + row, lambda: os.link(fresh("victim", False), row))
    for name in (row, row + "/key", row + "/sub/key"):
        attempt("HARD LINKED " + name, lambda: os.link(name, plain + "/hard"))
        attempt("HARD LINKED out " + name, lambda: os.link(name, "/tmp/hard"))
        attempt("CHMOD " + name, lambda: os.chmod(name, 0o777))
        attempt("TIMES " + name, lambda: os.utime(name, (1, 1)))
        attempt("TRUNCATED " + name, lambda: os.truncate(name, 0))
        attempt("UNLINKED " + name, lambda: os.unlink(name))
    attempt("REMOVED " + row, lambda: os.rmdir(row))
    attempt("PUT a file over " + row, lambda: os.rename(fresh("victim", False), row))
    attempt("PUT a directory over " + row, lambda: os.rename(fresh("victims", True), row))


def rename(path):
    """What can be renamed is looked at under its new name."""
    for i, place in enumerate((plain + "/moved", "/tmp/moved", "/home/moved")):
        if attempt(f"RENAMED {path} to {place}", lambda: os.rename(path, place)):
            subprocess.run(["grep", "-r", "", place])
        fresh("victims", True)
        attempt("EXCHANGED " + path, lambda: exchange(path, plain + "/victims"))


def move(paths):
    """mv copies what it may not rename."""
    there = [path for path in paths if os.path.lexists(path)]
    os.makedirs("/tmp/mv", exist_ok=True)
    subprocess.run(["mv", "--backup=numbered", "--target-directory=/tmp/mv", *there], capture_output=True)
    moved = [path for path in there if not os.path.lexists(path)]
    if moved:
        print("MV", moved, flush=True)
        subprocess.run(["grep", "-r", "", "/tmp/mv"])


def as_root_of_a_namespace():
    """In a user namespace of its own a process has all capabilities; masks have to be locked there."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        system(libc.unshare, NEWUSER | NEWNS)
        uid = os.getuid()
        attempt_quiet(lambda: open("/proc/self/uid_map", "w").write(f"0 {uid} 1"))
        for row in rows:
            attempt("UNMOUNTED " + row, lambda: system(libc.umount2, row.encode(), DETACH))
            attempt("REMOUNTED " + row, lambda: system(libc.mount, None, row.encode(), None, REMOUNT | BIND, None))
            attempt("MOVED " + row, lambda: system(libc.mount, row.encode(), b"/tmp", None, MOVE, None))
            look("unmounted", row)
        os.makedirs("/tmp/bound", exist_ok=True)
        for above in sorted({os.path.dirname(row) for row in rows} | {"/home", "/etc", "/"}):
            for flags in (BIND, BIND | REC):
                bound(above, flags)
        for row in rows:
            change(row)
    except OSError:
        pass
    finally:
        os._exit(0)


def bound(above, flags):
    if libc.mount(above.encode(), b"/tmp/bound", None, flags, None) != 0:
        return
    for row in rows:
        if row.startswith(above.rstrip("/") + "/"):
            look("bound", "/tmp/bound/" + os.path.relpath(row, above))
            change("/tmp/bound/" + os.path.relpath(row, above))
    libc.umount2(b"/tmp/bound", DETACH)


def attempt_quiet(action):
    try:
        action()
    except OSError:
        pass


os.chdir("/home")
to_move = []
for row in rows:
    by_alias(row)
    change(row)
    above = row
    while above not in ("/home", "/"):
        rename(above)
        to_move.append(above)
        above = os.path.dirname(above)
move(to_move)
for row in rows:  # again, after all that was done
    by_alias(row)
as_root_of_a_namespace()
subprocess.run("rm -rf /tmp/moved /tmp/hard /tmp/mv /home/plain/victim* 2>/dev/null", shell=True)

# What has to work.
print(content(plain + "/file").decode())
try:
    open(plain + "/written", "w").write("written")
    print("written")
except OSError:
    pass
print("done")
