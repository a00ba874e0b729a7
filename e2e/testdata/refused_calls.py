# Makes each system call that commands have no use for, with arguments for which it would fail in another way if
# it were let through, and prints those that are not refused; then the ones of other tables.
import ctypes
import errno
import mmap
import os
import socket

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
AMD64 = os.uname().machine == "x86_64"
names = ("mount umount2 pivot_root chroot setns name_to_handle_at open_by_handle_at fanotify_init fanotify_mark keyctl add_key "
         "request_key bpf userfaultfd perf_event_open kexec_load kexec_file_load init_module finit_module delete_module").split()
amd64 = (165, 166, 155, 161, 308, 303, 304, 300, 301, 250, 248, 249, 321, 323, 298, 246, 320, 175, 313, 176)
arm64 = (40, 39, 41, 51, 268, 264, 265, 262, 263, 219, 217, 218, 280, 282, 241, 104, 294, 105, 273, 106)
calls = dict(zip(names, amd64 if AMD64 else arm64))
calls |= {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430,
          "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467}
clone, unshare, clone3 = (56, 272, 435) if AMD64 else (220, 97, 435)
namespaces = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}


def tried(what, number, *args):
    """-1 is no descriptor, no address and no flags of any of them."""
    ctypes.set_errno(0)
    args = (args or (-1,)) + (0,) * 6
    result = libc.syscall(number, *[ctypes.c_long(a) for a in args[:6]])
    if result == 0 and number in (clone, clone3):
        os._exit(0)
    code = ctypes.get_errno() if result == -1 else 0
    return errno.errorcode.get(code, "nothing") if code else "nothing"


for name, number in calls.items():
    got = tried(name, number)
    if got != "EPERM":
        print(name, got)
for name, flag in namespaces.items():
    for call, number in (("clone", clone), ("unshare", unshare)):
        got = tried(name, number, flag | (17 if call == "clone" else 0))
        if got != "EPERM":
            print(call, name, got)
got = tried("clone", clone, 0x8000 | 17)  # a child of the agent's
if got != "EPERM":
    print("clone sibling", got)
print("clone3", tried("clone3", clone3, 0, 0))
print("no call", tried("no call", 600))
families = {1: "unix", 2: "inet", 10: "inet6", 16: "netlink"}  # 17 is packets, for which a capability is needed
for family in range(1, 64):
    for make in (socket.socket, socket.socketpair):
        try:
            made = make(family, socket.SOCK_DGRAM)
            got = "made"
        except OSError as e:
            got = errno.errorcode[e.errno]
        if family not in families and family != 17 and got != "EAFNOSUPPORT" or family in families and make == socket.socket and got != "made":
            print("family", family, make.__name__, got)
if AMD64:
    print("x32", tried("x32", 0x40000000 | 39))
    # mov eax, 20 (getpid of 32 bits); int 0x80; ret
    child = os.fork()
    if child == 0:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
        result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
        os._exit(0 if result == -errno.ENOSYS or result == -errno.EPERM else 99)
    print("32 bits", "let through" if os.waitpid(child, 0)[1] == 99 << 8 else "refused")
else:
    print("x32 ENOSYS\n32 bits refused")
