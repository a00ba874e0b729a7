package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// ahead runs a command that a shell takes which has started before. Until one waits, it is run again, and where a
// hostile one has lost its container.
func (l *lab) ahead(t *testing.T, user string, e types.Exec) (out types.Output) {
	t.Helper()
	e.Permissions = workspace
	eventually(t, "a shell that waits takes "+e.Command, func() bool {
		before := l.metric(t, "sandboxd_execs_ahead_total")
		var err error
		out, err = l.client.Exec(t.Context(), user, e)
		if err != nil && !strings.Contains(err.Error(), "the container was lost") {
			t.Fatal(err)
		}
		return err == nil && l.metric(t, "sandboxd_execs_ahead_total") > before
	})
	return out
}

var numbers = regexp.MustCompile(`\b[1-9]\d{1,6}\b`)

// outcome is what a caller sees of a command. Process ids differ.
func outcome(out types.Output) string {
	how := ""
	if out.Signal != nil {
		how = *out.Signal
	} else if out.ExitCode != nil {
		how = strconv.Itoa(*out.ExitCode)
	}
	return how + numbers.ReplaceAllString(fmt.Sprintf(" %q %q", out.Stdout, out.Stderr), "N")
}

// A shell that has started before it is asked for gives what bash gives. The agent's own test has all the scripts.
func TestAheadIsTheSame(t *testing.T) {
	all, err := os.ReadFile("../internal/agent/testdata/ahead_scripts.txt")
	if err != nil {
		t.Fatal(err)
	}
	var scripts []string
	for i, script := range strings.Split(strings.TrimSuffix(string(all), "\n"), "\n===\n") {
		if i%8 == 0 || strings.Contains(script, "/proc/") {
			scripts = append(scripts, script)
		}
	}
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "same")
		for _, script := range scripts {
			ahead := l.ahead(t, "same", types.Exec{Command: script, Stdin: "in1\nin2\n"})
			// Programs have no shell that waits: bash as one is bash as ever.
			plain := l.run(t, "same", types.Exec{Argv: []string{"bash", "-c", "--", script}, Stdin: "in1\nin2\n"})
			if want, got := outcome(plain), outcome(ahead); want != got {
				t.Errorf("%s\n--- bash:  %s\n--- ahead: %s", script, want, got)
			}
		}
	})
}

// reach tries for all its life to have what a later command is given, and leaves to itself what does so, too.
const reach = `
import ctypes, os, re, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(f, *args):
    try: return f(*args)
    except OSError: return None
def others(): return [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]
def look(p):
    for name in 'cmdline', 'environ':
        text = attempt(lambda: open(f'/proc/{p}/{name}', 'rb').read())
        if text: log.write(b'<' + text.rstrip(b' \0') + b'>\n')
    if p in family: return
    libc.ptrace(16, p, 0, 0)                    # PTRACE_ATTACH
    libc.ptrace(0x4206, p, 0, 1)                # PTRACE_SEIZE, with what it forks
    attempt(lambda: os.pwrite(os.open(f'/proc/{p}/mem', os.O_RDWR), b'x', 0x400000))
    for fd in attempt(os.listdir, f'/proc/{p}/fd') or []:
        attempt(lambda: os.set_blocking(os.open(f'/proc/{p}/fd/{fd}', os.O_RDWR | os.O_NONBLOCK), False))
    attempt(os.kill, p, signal.SIGSTOP)
log = open('/home/seen', 'ab', 0)
for s in signal.SIGTERM, signal.SIGHUP, signal.SIGINT: signal.signal(s, signal.SIG_IGN)
for name in '.bashrc', '.profile', '.bash_profile', '.inputrc', 'env.sh':
    open('/home/' + name, 'w').write('env >>/home/seen\n')
open('/home/ld.so.preload', 'w').write('/home/evil.so\n')
family = others() + [os.getpid()]               # it has to end, for the next to begin
begun = '/home/begun-%d' % os.getpid()
if os.fork() == 0:
    os.setsid()
    libc.prctl(36, 0, 0, 0, 0)                  # no subreaper
    if os.fork(): os._exit(0)
    while True:
        for p in others(): look(p)
        open(begun, 'w').close()
while not os.path.exists(begun): time.sleep(0.02)
time.sleep(0.3)
`

// What a command tries for all its life, nothing of the command after it is had by it: no shell waits while it runs,
// and what it leaves has ended before one does.
func TestNoCommandReachesTheNext(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "next")
		for _, how := range []string{"", "exec "} { // below the shell, or in its place
			l.ahead(t, "next", types.Exec{Command: how + "python3 - <<'X'\n" + reach + "X", Env: map[string]string{"OWN": "seen-by-itself"}})
			secret := types.Exec{Command: `echo "${#TOKEN}"`, Secrets: map[string]string{"TOKEN": "hush-of-the-next"}}
			if out := l.ahead(t, "next", secret); out.Stdout != "16\n" {
				t.Errorf("the next: %+v", out)
			}
			seen := readText(t, l.at("next", "seen"))
			if !strings.Contains(seen, "seen-by-itself") {
				t.Errorf("it saw not even itself: %.500q", seen)
			}
			for _, what := range []string{"hush", "ahead.2.so"} {
				if strings.Contains(seen, what) {
					t.Errorf("a command saw %s", what)
				}
			}
		}
		// Beside a command none waits, and those that begin there are started the ordinary way.
		stop := l.begin(t, "next")
		before := l.metric(t, "sandboxd_execs_ahead_total")
		for range 3 {
			l.sh(t, "next", "true")
		}
		if now := l.metric(t, "sandboxd_execs_ahead_total"); now != before {
			t.Errorf("%v commands were taken by a shell beside another command", now-before)
		}
		stop()
		l.ahead(t, "next", types.Exec{Command: "true"})
	})
}

// begin starts a command that runs until stop is called.
func (l *lab) begin(t *testing.T, user string) (stop func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.client.Exec(t.Context(), user, types.Exec{Command: "touch begun; while [ -e begun ]; do sleep 0.02; done", Permissions: workspace})
	}()
	eventually(t, "the command has begun", func() bool { _, err := os.Stat(l.at(user, "begun")); return err == nil })
	return func() {
		_ = os.Remove(l.at(user, "begun"))
		<-ended
	}
}

// A shell that waits is no command, and ends with the service. The next service has its own.
func TestAShellThatWaits(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "waits")
		l.ahead(t, "waits", types.Exec{Command: "true"})
		list, err := l.client.Containers(t.Context())
		if err != nil || len(list) != 1 || list[0].Commands != 0 || list[0].State != "idle" {
			t.Errorf("with a shell that waits: %+v %v", list, err)
		}
		eventually(t, "a shell that waits is seen", func() bool {
			if strings.Contains(l.inside(t, l.containerOf(t, "waits").ID, "ps", "-eo", "args"), "ahead.2.so") {
				return true
			}
			l.ahead(t, "waits", types.Exec{Command: "true"}) // no shell is started beside what Docker runs to look
			return false
		})
		l.stop(syscall.SIGKILL)
		for _, c := range l.containers(t) {
			eventually(t, "no shell outlives the service", func() bool {
				return !strings.Contains(l.inside(t, c.ID, "ps", "-eo", "args"), "ahead.2.so")
			})
		}
		l.environ = append(l.environ, "SANDBOXD_EXEC_AHEAD=0", "SANDBOXD_IDLE_REMOVE_AFTER=2s")
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := l.sh(t, "waits", "ps -eo args; sleep 0.05"); strings.Contains(got, "ahead.2.so") {
				t.Errorf("although there is to be none: %s", got)
			}
		}
		if n := l.metric(t, "sandboxd_execs_ahead_total"); n != 0 {
			t.Errorf("%v commands were taken by shells, of which there is to be none", n)
		}
		l.stop(syscall.SIGTERM)
		l.environ = append(l.environ, "SANDBOXD_EXEC_AHEAD=1")
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.ahead(t, "waits", types.Exec{Command: "true"})
		eventually(t, "a shell that waits keeps no container", func() bool { return len(l.containers(t)) == 0 })
	})
}
