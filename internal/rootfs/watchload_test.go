package rootfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/waittest"
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
func TestQueueFillersAreExpelled(t *testing.T) {
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
func TestConstantChangersAreExpelled(t *testing.T) {
	p, specs := watching(t, "alice", "mallory")
	quiet, loud := event(p, "alice", ".ssh"), event(p, "mallory", ".ssh")
	var gone []dockerexec.Fingerprint
	for begun := time.Now(); len(gone) == 0; gone = p.handle(loud) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("it goes on")
		}
	}
	waittest.Until(t, "who changes little stays", func() bool {
		delete(p.watches.load.looks, "alice") // a busy machine may have let a look take long
		return len(p.handle(quiet)) == 0
	})
	if !slices.Equal(gone, []dockerexec.Fingerprint{specs[1].Fingerprint()}) {
		t.Errorf("%q have to go, want %q", gone, specs[1].Fingerprint())
	}
}

// Many names in what is hidden take no more than a look each, and what they take is charged to their user.
func TestManyNamesInWhatIsHidden(t *testing.T) {
	const names = 16000
	p, specs := watching(t, "alice", "mallory")
	loud := specs[1]
	home := filepath.Join(p.usersDir, "mallory", "home")
	for n := range 82 {
		loud.Masks = append(loud.Masks, dockerexec.Mask{Target: fmt.Sprint("/home/none", n)})
	}
	if err := errors.Join(os.Mkdir(filepath.Join(home, "full"), 0o755), os.WriteFile(filepath.Join(home, "full", "kept"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	it, err := identifyNoFollow(filepath.Join(home, "full"))
	if err != nil {
		t.Fatal(err)
	}
	loud.Masks = append(loud.Masks, dockerexec.Mask{Target: "/home/full", ID: it.id})
	p.mu.Unlock()
	_, err = p.Prepare(loud)
	p.mu.Lock()
	if err != nil {
		t.Fatal(err)
	}
	known := p.mounted[loud.Fingerprint()]
	if !p.isIntact(loud) {
		t.Fatal("it has to go in any case")
	}
	changed := map[string]uint64{}
	var data []byte
	for wd, holders := range p.watches.dirs {
		if _, ok := holders[loud.Fingerprint()][filepath.Join(home, "full")]; ok {
			for n := range names {
				name := make([]byte, 16)
				copy(name, fmt.Sprint("f", n))
				data = append(append(data, told(wd, unix.IN_CREATE, len(name))...), name...)
				changed[filepath.Join(home, "full", fmt.Sprint("f", n))] = 1
			}
		}
	}
	if touched, broken := p.touches(changed, known); !touched || broken {
		t.Errorf("touched: %t, broken: %t", touched, broken)
	}
	// Each comparison of a mask with a name would make a path.
	if made := testing.AllocsPerRun(1, func() { p.touches(changed, known) }); made > names {
		t.Errorf("%d names and %d masks take %.0f allocations", names, len(loud.Masks), made)
	}
	p.watches.load.looks = map[string]look{}
	if happened, _ := p.watches.parse(data, p.mounted); len(happened[loud.Fingerprint()]) != names || p.watches.load.looks["mallory"].took == 0 {
		t.Errorf("%d names were read, for %v", len(happened[loud.Fingerprint()]), p.watches.load.looks)
	}
	var gone []dockerexec.Fingerprint
	for begun := time.Now(); len(gone) == 0; gone = p.handle(data) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("it goes on")
		}
	}
	if !slices.Equal(gone, []dockerexec.Fingerprint{loud.Fingerprint()}) {
		t.Errorf("%q have to go, want %q", gone, loud.Fingerprint())
	}
}

// A look for many names finds the same as one for each of them.
func TestTouchedFindsAllNames(t *testing.T) {
	p := NewPreparer("/users", zerolog.Nop())
	known := mounted{since: 5, Spec: dockerexec.Spec{
		User:  "alice",
		Masks: []dockerexec.Mask{{Target: "/home/a/secret"}, {Target: "/image"}, {Target: "/data/x/y"}},
		Mounts: []dockerexec.Mount{
			{Source: "/users/alice/home", Target: "/home"}, {Source: "/srv/data", Target: "/data"},
			{Source: "/users/alice/home/b/ro", Target: "/home/b/ro", ReadOnly: true},
		},
	}}
	for _, c := range []struct {
		name            string
		at              uint64
		touched, broken bool
	}{
		{"/users/alice/home/a/secret", 9, true, false},
		{"/users/alice/home/a/secret/deep/file", 9, true, false},
		{"/users/alice/home/a", 9, true, false},
		{"/users/alice/home/a/secrets", 9, false, false},
		{"/users/alice/home/a/other", 9, false, false},
		{"/srv/data/x", 9, true, false},
		{"/srv/data/x/y/z", 9, true, false},
		{"/srv/data/z", 9, false, false},
		{"/image", 9, false, false},
		{"/users/alice/home/b/ro", 5, true, false},
		{"/users/alice/home/b/ro", 6, true, true},
		{"/users/alice/home/b", 6, true, true},
		{"/users/alice/home", 6, true, true},
		{"/users", 6, true, true},
		{"/users/alice/home/b/ro/file", 6, false, false},
	} {
		touched, broken := p.touches(map[string]uint64{c.name: c.at, "/elsewhere": 9}, known)
		if touched != c.touched || broken != c.broken {
			t.Errorf("%s at %d: touched: %t, broken: %t", c.name, c.at, touched, broken)
		}
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
