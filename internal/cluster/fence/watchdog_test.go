package fence

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// pipe is a watchdog that resets nothing.
type pipe struct {
	name string
	mu   sync.Mutex
	text string
}

func layPipe(t *testing.T) *pipe {
	t.Helper()
	p := &pipe{name: filepath.Join(t.TempDir(), "watchdog")}
	if err := syscall.Mkfifo(p.name, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pipe) read(t *testing.T) {
	t.Helper()
	file, err := os.OpenFile(p.name, os.O_RDWR, 0) // it has a writer, so it has no end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	go func() {
		for chunk := make([]byte, 100); ; {
			n, err := file.Read(chunk)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.text += string(chunk[:n])
			p.mu.Unlock()
		}
	}()
}

func (p *pipe) has() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

// A watchdog is fed for as long as the lease lives, and told to count no more once nothing runs or another fence is to go on.
func TestTheWatchdogIsFedWhileThereIsALease(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	r, p := lay(t), layPipe(t)
	tried := filepath.Join(t.TempDir(), "tried")
	r.watchdog, r.remount = p.name, []string{"sh", "-c", "echo >> " + tried}
	stop := r.fence(t, etcd)
	waittest.Until(t, "it was tried again", func() bool { text, _ := os.ReadFile(tried); return len(text) > 1 })
	if rec := r.files.Read(); rec.Lease != 0 {
		t.Errorf("a lease without the watchdog: %+v", rec)
	}
	if err := r.group.run(t, "one", "sleep 7015").Wait(); err == nil {
		t.Error("it ran without a lease")
	}
	p.read(t)
	waittest.Until(t, "the host has a lease", func() bool { return r.files.Read().Lease != 0 })
	fed := len(p.has())
	waittest.Until(t, "it is fed", func() bool { return len(p.has()) > fed+10 })
	stop()
	waittest.Until(t, "it counts no more", func() bool { return strings.Count(p.has(), "V") == 1 && strings.HasSuffix(p.has(), "V") })

	r.fence(t, etcd) // which goes on with the lease
	waittest.Until(t, "it is fed again", func() bool { return strings.HasSuffix(p.has(), "\n") })
	if _, err := etcd.Revoke(t.Context(), clientv3.LeaseID(r.files.Read().Lease)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it counted no more when all was killed, and counts with the next lease", func() bool {
		return strings.Count(p.has(), "V") == 2 && strings.HasSuffix(p.has(), "\n")
	})
}

// Where the fence cannot kill, it neither feeds the watchdog nor has it count no more.
func TestTheWatchdogResetsAHostThatCannotKill(t *testing.T) {
	r, p := lay(t), layPipe(t)
	p.read(t)
	f := New(nil, Config{Files: r.files, Group: Group("none\x00"), Watchdog: p.name, Log: zerolog.Nop()})
	if err := f.arm(); err != nil {
		t.Fatal(err)
	}
	f.fence(t.Context(), "of the test")
	if err := f.take(t.Context()); err == nil || f.watchdog == nil {
		t.Errorf("%v", err)
	}
	f.disarm() // what it was told before is all that it was told
	waittest.Until(t, "it has been fed once", func() bool { return strings.HasSuffix(p.has(), "V") })
	if got := p.has(); got != "\nV" {
		t.Errorf("%q", got)
	}
}

// What is no watchdog is none.
func TestAWatchdogHasATime(t *testing.T) {
	if resetAfter >= TTL-Limit || resetAfter < 2*time.Second {
		t.Errorf("%s", resetAfter)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, "/dev/null", file + ".none"} {
		f := New(nil, Config{Watchdog: name, Log: zerolog.Nop()})
		if err := f.arm(); err == nil || f.watchdog != nil {
			t.Errorf("%s is a watchdog", name)
		}
	}
}
