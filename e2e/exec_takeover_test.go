package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// taker is a program that tries all its life to get at what the agent's processes hold: those of its container, in
// every moment of theirs. What it could do it writes down.
const taker = `
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
page = ctypes.create_string_buffer(8)
here, there = iovec(ctypes.cast(page, ctypes.c_void_p), 8), iovec(0x400000, 8)
def is_agent(p):
    try: return open('/proc/%d/cmdline' % p, 'rb').read().startswith(b'/.daycare/agent')
    except OSError: return False
def traced(p):
    if libc.ptrace(0x4206, p, None, None): return False
    libc.ptrace(0x4207, p, None, None)
    try: os.waitpid(p, 0x40000000)
    except OSError: pass
    same = is_agent(p)
    libc.ptrace(17, p, None, None)
    return same
def opened(name, flags):
    os.close(os.open(name, flags))
    return True
def descriptor(p):
    fd = libc.syscall(434, p, 0)
    if fd < 0: return False
    try: return any(libc.syscall(438, fd, n, 0) >= 0 for n in range(8))
    finally: os.close(fd)
def not_being_started(p):
    # What is being started has a command's user before it is the command: it may be signalled, as that may, and gVisor
    # tells which numbers its descriptors have, which are then refused ('open fd', 'pidfd_getfd').
    uids = [line.split()[1:] for line in open('/proc/%d/status' % p) if line.startswith('Uid:')][0]
    return str(os.getuid()) not in uids
def signalled(p):
    os.kill(p, 0)
    return not_being_started(p)
def listed(p):
    os.listdir('/proc/%d/fd' % p)
    return not_being_started(p)
ways = {
    'ptrace': traced,
    'process_vm_readv': lambda p: libc.process_vm_readv(p, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0,
    'process_vm_writev': lambda p: libc.process_vm_writev(p, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0,
    'mem': lambda p: opened('/proc/%d/mem' % p, os.O_RDWR),
    'environ': lambda p: len(open('/proc/%d/environ' % p).read()) > 0,
    'list fd': listed,
    'open fd': lambda p: any([opened('/proc/%d/fd/%d' % (p, n), os.O_RDWR) for n in range(8)]),
    'pidfd_getfd': descriptor,
    'root': lambda p: os.listdir('/proc/%d/root/' % p) is not None,
    'kill': signalled,
}
seen, tries = set(), 0
while True:
    for p in [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]:
        for name, way in ways.items():
            if not is_agent(p): break
            seen.add(p)
            try: done = way(p)
            except OSError: done = False
            if done and is_agent(p):
                with open('/home/taken', 'a') as f: f.write('%s of %d\n' % (name, p))
    tries += 1
    with open('/home/tries.new', 'w') as f: f.write('%d %d' % (tries, len(seen)))
    os.rename('/home/tries.new', '/home/tries')
`

// takes waits until the user's taker has been through all processes once more, and says what it has got. At least the first process
// is one of the agent's.
func (l *lab) takes(t *testing.T, user string) string {
	t.Helper()
	before, now := holds(l.at(user, "tries")), ""
	eventually(t, user+" has tried", func() bool {
		now = holds(l.at(user, "tries"))
		return now != "" && now != before
	})
	var tries, agents int
	if _, err := fmt.Sscan(now, &tries, &agents); err != nil || agents == 0 {
		t.Fatalf("%s has found no process of the agent's: %q, %v", user, now, err)
	}
	taken, _ := os.ReadFile(l.at(user, "taken"))
	return string(taken)
}

// No process of the agent's can be traced, read or signalled by a command, in any moment: not the first one, not the
// session's, not the ones that are being started, for ports or for a command, before they are what they will be.
func TestNothingOfTheAgentIsTaken(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		l.register(t, "taker")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = l.client.Exec(ctx, "taker", types.Exec{Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", taker}})
		}()
		l.takes(t, "taker")
		for range 20 {
			l.run(t, "taker", types.Exec{Argv: []string{"/bin/true"}, Env: map[string]string{"SECRET": secret}})
		}
		id := l.containerOf(t, "taker").ID
		for range 5 {
			l.inside(t, id, "/.daycare/agent", "forward") // ends as its stdin has
		}
		if taken := l.takes(t, "taker"); taken != "" {
			t.Errorf("a command has taken\n%s", taken)
		}
		end()
		<-ended

		l.register(t, "server")
		p := l.startProcess(t, "server", types.StartProcess{
			Permissions: workspace, Ready: &types.Ready{Command: "true", IntervalMs: 100}, Expose: []types.Expose{{Port: 8000}},
			Command: "python3 -m http.server --bind 127.0.0.1 8000 & exec python3 -c '" + strings.ReplaceAll(taker, "'", `"`) + "'",
		})
		l.takes(t, "server")
		eventually(t, "it is reached", func() bool {
			web := &http.Client{Timeout: time.Minute}
			answer, err := web.Get("http://" + p.Expose[0].Address)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			return err == nil
		})
		if taken := l.takes(t, "server"); taken != "" {
			t.Errorf("a process has taken\n%s", taken)
		}
	}, exposePorts)
}
