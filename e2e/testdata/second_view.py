# Tries to look at what is mounted from where masks are not: prints, for each way, whether it shows a file
# that is not hidden ("plain"), and whatever it shows or changes of what is ($ROWS, directories with a file "key").
import ctypes
import errno
import json
import os
import signal
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
rows = json.loads(os.environ["ROWS"])
ARM = os.uname().machine == "aarch64"
NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
RDONLY, REMOUNT, BIND, MOVE, REC, PRIVATE, DETACH = 1, 0x20, 0x1000, 0x2000, 0x4000, 0x40000, 2
AT_FDCWD, EMPTY_PATH, AT_RECURSIVE, CLONE_TREE = -100, 0x1000, 0x8000, 1
number = {"pivot_root": 41, "name_to_handle_at": 264, "open_by_handle_at": 265, "fanotify_init": 262, "fanotify_mark": 263} if ARM else {
    "pivot_root": 155, "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "fanotify_mark": 301}
number |= {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "mount_setattr": 442, "open_tree_attr": 467}
new = "/tmp/view"  # where the second view is to be


def text(arg):
    return arg.encode() if isinstance(arg, str) else arg


def done(result, what):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {errno.errorcode.get(code, code)}")
    return result


def call(name, *args):
    return done(libc.syscall(number[name], *[ctypes.c_long(a) if isinstance(a, int) else text(a) for a in args]), name)


def mount(source, target, kind, flags, data=None):
    done(libc.mount(text(source), text(target), text(kind), flags, text(data)), "mount")


def detach(path):
    done(libc.umount2(text(path), DETACH), "umount2")


def namespaces(flags=NEWNS):
    """Makes this process root of a user namespace with a mount namespace of its own."""
    uid, gid = os.getuid(), os.getgid()
    done(libc.unshare(NEWUSER | flags), "unshare")
    try:
        open("/proc/self/setgroups", "w").write("deny")
    except OSError:
        pass  # gVisor has none
    open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
    open("/proc/self/gid_map", "w").write(f"0 {gid} 1")


def look(at, home="/home", dir_fd=None):
    """Looks at everything below another place of the home, and tries to change it."""
    def name(path):
        rest = os.path.relpath(path, home)
        return rest if dir_fd is not None else os.path.join(at, rest)

    def content(path):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=dir_fd)
        try:
            return os.read(fd, 100).decode()
        finally:
            os.close(fd)

    shown = False
    try:
        shown = content(name("/home/plain/file")) == "plain"
    except OSError:
        pass
    for row in rows:
        try:
            print("READ", row, content(name(row + "/key")))
        except OSError:
            pass
        try:
            entries = os.listdir(os.open(name(row), os.O_RDONLY, dir_fd=dir_fd))
            if "key" in entries or "sub" in entries:
                print("LISTED", row, entries)
        except OSError:
            pass
        try:
            fd = os.open(name(row + "/planted"), os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=dir_fd)
            os.write(fd, b"planted")
            print("WROTE", row)
        except OSError:
            pass
    return shown


def overlay(extra=""):
    namespaces()
    mount("o", new, "overlay", 0, "lowerdir=/home:" + layer("low") + extra)
    return look(new)


def layer(name):
    path = "/tmp/layers/" + name
    os.makedirs(path, exist_ok=True)
    return path


def overlay_with_a_layer_to_write_to():
    return overlay(f",upperdir={layer('up')},workdir={layer('work')}")


def overlay_that_writes_to_the_home():
    namespaces()
    os.makedirs("/home/work", exist_ok=True)
    try:
        mount("o", new, "overlay", 0, f"lowerdir={layer('low')},upperdir=/home,workdir={layer('work')}")
    except OSError:
        mount("o", new, "overlay", 0, f"lowerdir={layer('low')},upperdir=/home,workdir=/home/work")
    for row in rows:
        try:
            os.makedirs(new + row.removeprefix("/home"), exist_ok=True)
        except OSError:
            pass
    return look(new)


def overlay_of_the_root():
    namespaces()
    mount("o", new, "overlay", 0, "lowerdir=/:" + layer("low"))
    return look(new, "/")


def bind(flags):
    namespaces()
    mount("/home", new, None, BIND | flags)
    return look(new)


def bind_and_take_away():
    namespaces()
    mount("/home", new, None, BIND | REC)
    for row in rows:
        try:
            detach(os.path.join(new, os.path.relpath(row, "/home")))
        except OSError:
            pass
    return look(new)


def bind_of_the_root():
    namespaces()
    mount("/", new, None, BIND)
    mount("/home", new + "/home", None, BIND)
    return look(new, "/")


def unmount():
    namespaces()
    for row in rows:
        for _ in range(2):
            try:
                detach(row)
            except OSError:
                pass
    return look("/home")


def move():
    namespaces()
    for row in rows:
        try:
            mount(row, new, None, MOVE)
        except OSError:
            pass
    return look("/home")


def remount():
    namespaces()
    for row in rows + ["/home"]:
        try:
            mount(None, row, None, REMOUNT | BIND)
        except OSError:
            pass
    return look("/home")


def private():
    namespaces()
    mount(None, "/", None, REC | PRIVATE)
    for row in rows:
        try:
            detach(row)
        except OSError:
            pass
    return look("/home")


def below_another():
    """What is mounted over a directory above the masks may show it anew."""
    namespaces()
    mount("/home", "/home", None, BIND)
    return look("/home")


def detached_tree(flags, name="open_tree"):
    namespaces()
    more = (None, 0) if name == "open_tree_attr" else ()
    fd = call(name, AT_FDCWD, "/home", CLONE_TREE | flags, *more)
    return look("", dir_fd=fd)


def attached_tree():
    namespaces()
    fd = call("open_tree", AT_FDCWD, "/home", CLONE_TREE)
    call("move_mount", fd, "", AT_FDCWD, new, 4)
    return look(new)


def moved_mask():
    namespaces()
    for row in rows:
        try:
            call("move_mount", AT_FDCWD, row, AT_FDCWD, new, 0)
        except OSError:
            pass
    return look("/home")


def new_mount_calls():
    namespaces()
    fd = call("fsopen", "overlay", 0)
    call("fsconfig", fd, 1, "lowerdir", "/home:" + layer("low"), 0)
    call("fsconfig", fd, 6, None, None, 0)
    return look("", dir_fd=call("fsmount", fd, 0, 0))


def attributes():
    namespaces()
    for path in rows + ["/home"]:
        try:
            call("mount_setattr", AT_FDCWD, path, 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)
        except OSError:
            pass
    return look("/home")


def other_root(flags):
    """What a nested container runtime does."""
    namespaces()
    mount("/", new, None, BIND | REC)
    if flags is None:
        mount("/home", new + "/home", None, BIND)
    os.chdir(new)
    call("pivot_root", ".", ".")
    detach(".")
    os.chdir("/")
    return look("/home")


def changed_root():
    namespaces()
    mount("/home", new, None, BIND | REC)
    os.chroot(new)
    return look("/")


def nested_runtime():
    """The same with tools: processes, mounts and a root of their own."""
    script = f"mount --rbind /home {new} && mount -t tmpfs t /mnt 2>/dev/null; cat {new}/plain/file; for r in {' '.join(rows)}; do cat {new}${{r#/home}}/key; done"
    out = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", script], capture_output=True, text=True)
    for line in out.stdout.splitlines():
        if line.startswith("the-secret"):
            print("READ", line)
    if "plain" not in out.stdout:
        raise OSError(errno.EPERM, out.stderr.strip().splitlines()[-1] if out.stderr else "nothing")
    return True


def bubblewrap():
    out = subprocess.run(["bwrap", "--bind", "/", "/", "--bind", "/home", "/mnt", "sh", "-c", f"cat /mnt/plain/file; cat /mnt/*/key /mnt/.*/key"], capture_output=True, text=True)
    if "the-secret" in out.stdout:
        print("READ", out.stdout)
    if out.returncode != 0 and "plain" not in out.stdout:
        raise OSError(errno.EPERM, out.stderr.strip())
    return "plain" in out.stdout


def other_processes():
    shown = False
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        for how in ("root/home", "cwd", "cwd/home"):
            shown = look(f"/proc/{pid}/{how}") or shown
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in fds:
            shown = look(f"/proc/{pid}/fd/{fd}") or shown
    return shown


def others_namespaces():
    failed = None
    for pid in [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
        for kind in ("user", "mnt"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                done(libc.setns(fd, 0), "setns")
            except OSError as e:
                failed = e
        look("/home")
    done(libc.setns(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0), "setns")
    return look("/home")


def parents_namespace():
    """A child that goes back to where its parent is."""
    fds = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    namespaces()
    for fd in fds:
        try:
            done(libc.setns(fd, 0), "setns")
        except OSError:
            pass
    for row in rows:
        try:
            detach(row)
        except OSError:
            pass
    return look("/home")


def handles():
    """A handle of a file is a number; those near the home's own are tried."""
    mount_id = ctypes.c_int()
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    done(libc.syscall(number["name_to_handle_at"], AT_FDCWD, b"/home/plain/file", handle, ctypes.byref(mount_id), 0), "name_to_handle_at")
    home = os.open("/home", os.O_RDONLY)
    shown, near = False, struct.unpack_from("I", handle, 8)[0]
    for inode in range(max(near - 200, 0), near + 200):
        struct.pack_into("I", handle, 8, inode)
        try:
            fd = call("open_by_handle_at", home, handle, os.O_RDONLY)
            if "the-secret" in os.read(fd, 100).decode():
                print("READ by handle")
            shown = True
        except OSError:
            pass
    return shown


def handles_as_root():
    namespaces()
    return handles()


def file_events():
    """A file that another opens comes with the event, opened."""
    fd = call("fanotify_init", 0x2, os.O_RDONLY)
    call("fanotify_mark", fd, 0x1 | 0x10, 0x20 | 0x1, AT_FDCWD, "/home")
    os.close(os.open("/home/plain/file", os.O_RDONLY))
    return "plain" in os.read(struct.unpack_from("i", os.read(fd, 4096), 16)[0], 100).decode()


def file_events_as_root():
    namespaces()
    return file_events()


def tried(name, way):
    """Each way has a process of its own, whose namespaces go with it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            print(name + ": " + ("shows plain" if way() else "shows nothing"))
        except (OSError, ValueError) as e:
            print(f"{name}: {e}")
        except BaseException as e:
            print(f"{name}: BROKEN {e!r}")
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        print(name + ": killed by", signal.Signals(os.WTERMSIG(status)).name)


os.makedirs(new, exist_ok=True)
print("itself: shows plain" if look("/home") else "itself: shows nothing")
for name, way in {
    "overlay": overlay,
    "overlay with a layer to write to": overlay_with_a_layer_to_write_to,
    "overlay that writes to the home": overlay_that_writes_to_the_home,
    "overlay of the root": overlay_of_the_root,
    "bind": lambda: bind(0),
    "bind with all below": lambda: bind(REC),
    "bind, then unmounted": bind_and_take_away,
    "bind of the root": bind_of_the_root,
    "bind over itself": below_another,
    "unmount": unmount,
    "unmount in private": private,
    "move": move,
    "move_mount": moved_mask,
    "remount": remount,
    "mount_setattr": attributes,
    "detached tree": lambda: detached_tree(0),
    "detached tree with all below": lambda: detached_tree(AT_RECURSIVE),
    "detached tree with attributes": lambda: detached_tree(0, "open_tree_attr"),
    "attached tree": attached_tree,
    "fsmount": new_mount_calls,
    "pivot_root": lambda: other_root(0),
    "pivot_root, home alone": lambda: other_root(None),
    "chroot": changed_root,
    "nested runtime": nested_runtime,
    "bubblewrap": bubblewrap,
    "other processes": other_processes,
    "others' namespaces": others_namespaces,
    "the parent's namespace": parents_namespace,
    "file handles": handles,
    "file handles as root": handles_as_root,
    "fanotify": file_events,
    "fanotify as root": file_events_as_root,
}.items():
    tried(name, way)
print("ended")
