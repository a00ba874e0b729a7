package rootfs

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// event is what inotify tells of a name in the home of a user.
func event(p *Preparer, user, name string) []byte {
	home, padded := filepath.Join(p.usersDir, user, "home"), make([]byte, 32)
	copy(padded, name)
	for wd, holders := range p.watches.dirs {
		for _, dirs := range holders {
			if _, ok := dirs[home]; ok {
				return append(told(wd, unix.IN_CREATE, len(padded)), padded...)
			}
		}
	}
	panic(home + " is not watched")
}

func told(wd int, mask uint32, size int) []byte {
	data := binary.NativeEndian.AppendUint32(nil, uint32(int32(wd)))
	data = binary.NativeEndian.AppendUint32(data, mask)
	data = binary.NativeEndian.AppendUint32(data, 0)
	return binary.NativeEndian.AppendUint32(data, uint32(size))
}

// watching is a Preparer with containers of users, whose events a test tells of.
func watching(t *testing.T, users ...string) (*Preparer, []dockerexec.Spec) {
	t.Helper()
	p := NewPreparer(t.TempDir(), zerolog.Nop())
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	p.watches = newWatches(fd)
	var specs []dockerexec.Spec
	for _, user := range users {
		spec := masked(t, p.usersDir, user)
		if _, err := p.Prepare(spec); err != nil {
			t.Fatal(err)
		}
		specs = append(specs, spec)
	}
	p.mu.Lock()
	t.Cleanup(p.mu.Unlock)
	return p, specs
}

// What no mask is about is passed over.
func TestNamesThatNobodyAsksAbout(t *testing.T) {
	p, specs := watching(t, "alice")
	var data []byte
	for n := range 1000 {
		data = append(data, event(p, "alice", fmt.Sprint("file", n))...)
	}
	if happened, lost := p.watches.parse(data, p.mounted); len(happened) > 0 || lost {
		t.Errorf("%d names are kept", len(happened[specs[0].Fingerprint()]))
	}
	if happened, _ := p.watches.parse(event(p, "alice", ".ssh"), p.mounted); len(happened[specs[0].Fingerprint()]) != 1 {
		t.Errorf("what is to be hidden is not: %v", happened)
	}
}

// Who fills the queue loses its containers; nobody else does.
func TestWhoFillsTheQueueGoes(t *testing.T) {
	p, specs := watching(t, "alice", "mallory", "bob")
	data := append(event(p, "alice", "a"), event(p, "bob", "b")...)
	for range 2000 {
		data = append(data, event(p, "mallory", "m")...)
	}
	data = append(data, told(-1, unix.IN_Q_OVERFLOW, 0)...)
	if gone := p.handle(data); !slices.Equal(gone, []dockerexec.Fingerprint{specs[1].Fingerprint()}) {
		t.Errorf("%q have to go, want %q", gone, specs[1].Fingerprint())
	}
}

// Who keeps what is to be hidden changing loses its containers.
func TestWhatChangesAllTheTimeGoes(t *testing.T) {
	p, specs := watching(t, "alice", "mallory")
	quiet, loud := event(p, "alice", ".ssh"), event(p, "mallory", ".ssh")
	var gone []dockerexec.Fingerprint
	for begun := time.Now(); len(gone) == 0; gone = p.handle(loud) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("it goes on")
		}
	}
	gone = append(gone, p.handle(quiet)...)
	if !slices.Equal(gone, []dockerexec.Fingerprint{specs[1].Fingerprint()}) {
		t.Errorf("%q have to go, want %q", gone, specs[1].Fingerprint())
	}
}

// What the kernel does not watch any more does not count, whoever has let it go.
func TestWatchesThatAreGone(t *testing.T) {
	p, specs := watching(t, "alice", "bob")
	for _, user := range []string{"alice", "bob"} {
		if p.watchedOfOthers(user, "") == 0 {
			t.Fatalf("%s has nothing watched", user)
		}
	}
	p.unwatch(specs[1])
	for wd, holders := range p.watches.dirs {
		if len(holders[specs[1].Fingerprint()]) > 0 {
			t.Errorf("%d is watched for bob", wd)
		}
		p.watches.parse(told(wd, unix.IN_IGNORED, 0), p.mounted)
	}
	if len(p.watches.dirs)+len(p.watches.held) > 0 {
		t.Errorf("watched for nobody: %v, %v", p.watches.dirs, p.watches.held)
	}
}
