package rootfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// What changes in directories is told, until nobody wants to know it any more. Hidden ones and
// node_modules are left out.
func TestFollow(t *testing.T) {
	p := NewPreparer(t.TempDir(), zerolog.Nop())
	dir := t.TempDir()
	for _, name := range []string{"src", ".git", "node_modules", "gone"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := dockerexec.Spec{User: "alice", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told, over := make(chan map[string]bool, 100), make(chan struct{})
	go func() {
		defer close(over)
		p.Follow(ctx, spec, []string{dir, filepath.Join(dir, "nowhere")}, func(news dockerexec.News) {
			all := map[string]bool{}
			news.Each(func(place string, modified, _ bool) { all[place] = modified })
			told <- all
		})
	}()
	got := map[string]bool{}
	waittest.Until(t, "it is followed", func() bool {
		for _, name := range []string{".git/index", "node_modules/module", "src/begin"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return len(told) > 0
	})
	if err := os.Remove(filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	for !hasKey(got, filepath.Join(dir, "gone")) {
		for place, modified := range <-told {
			got[place] = got[place] || modified
		}
	}
	for place, modified := range got {
		if want := map[string]bool{filepath.Join(dir, "src/begin"): true, filepath.Join(dir, "gone"): false}; !hasKey(want, place) || want[place] != modified {
			t.Errorf("%s is told, modified: %t", place, modified)
		}
	}
	cancel()
	<-over
	if n := p.followed.Of("alice"); n != 0 {
		t.Errorf("%d directories are still followed", n)
	}
}

// What an agent does to have a file heard, sets its time to what it is, is not told again: else two who watch would have each other
// hear of it for ever.
func TestWhatIsHeardIsNotToldAgain(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	root, err := openRoot(hostfs.Config{Dir: dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Walks: hostfs.NewWalks(), User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f := followed{dir: dir, seen: map[string]seen{}}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := func(changes ...hostfs.Change) (is, modified bool) {
		var events []hostfs.Event
		for _, change := range changes {
			events = append(events, hostfs.Event{Name: "file", Change: change})
		}
		news := f.news(root, events)
		news.Each(func(place string, m, _ bool) { is, modified = place == name, m })
		return is, modified
	}
	write("one")
	if is, modified := told(hostfs.Created, hostfs.Written); !is || !modified {
		t.Error("a new file is not told")
	}
	if is, _ := told(hostfs.Written); is {
		t.Error("it is told again")
	}
	write("other")
	if is, modified := told(hostfs.Written); !is || !modified {
		t.Error("a change is not told")
	}
	if is, _ := told(hostfs.Written); is {
		t.Error("it is told again")
	}
	if is, modified := told(hostfs.Removed); !is || modified {
		t.Error("a removal is not told")
	}
	for i := range 2 * maxSeen {
		f.seen[fmt.Sprint(i)] = seen{}
	}
	if is, _ := told(hostfs.Written); !is || len(f.seen) > 2 {
		t.Errorf("%d files are known", len(f.seen))
	}
}

func hasKey(m map[string]bool, key string) bool {
	_, is := m[key]
	return is
}
