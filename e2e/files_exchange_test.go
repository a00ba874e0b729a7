package e2e

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

const canary = "the-canary"

// outside makes a directory of the host that nobody may get to, with the files of a view in it, and
// says afterwards whether anything in it was changed.
func outside(t *testing.T, l *lab, names ...string) (dir string, check func()) {
	t.Helper()
	dir, err := os.MkdirTemp(l.dir, "outside-")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777), os.WriteFile(filepath.Join(dir, name), []byte(canary), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	_ = filepath.Walk(dir, func(name string, info os.FileInfo, err error) error { return os.Chmod(name, info.Mode().Perm()|0o666) })
	before := below(t, dir)
	return dir, func() {
		t.Helper()
		if after := below(t, dir); !slices.Equal(after, before) {
			t.Errorf("outside there is %v", after)
		}
		unchanged(t, dir, names)
	}
}

// unchanged sees that files outside are as they were, and that nothing of a command's came there.
func unchanged(t *testing.T, dir string, names []string) {
	t.Helper()
	for _, name := range names {
		if got := holds(filepath.Join(dir, name)); got != canary {
			t.Errorf("outside %s holds %q", name, got)
		}
	}
	for _, name := range below(t, dir) {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() && info.Size() != int64(len(canary)) {
			t.Errorf("outside %s was written", name)
		}
	}
}

// pair is a name in an open directory, which is exchanged for the one with .link behind it: nobody
// exchanges what a link leads to.
type pair struct {
	dir  int
	name string
}

// swap exchanges names for links, one or another, as fast as it can until stop; now and then it rests,
// so that some calls come through. It returns how often it did.
func swap(stop <-chan struct{}, pairs ...pair) int {
	swaps := 0
	for {
		for range 50 + rand.IntN(2000) {
			p := pairs[rand.IntN(len(pairs))]
			if unix.Renameat2(p.dir, p.name, p.dir, p.name+".link", unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
		}
		select {
		case <-stop:
			return swaps
		case <-time.After(time.Duration(rand.IntN(600)) * time.Millisecond):
		}
	}
}

// restore puts what is no link back under its name.
func (p pair) restore(t *testing.T) {
	t.Helper()
	var there unix.Stat_t
	err := unix.Fstatat(p.dir, p.name, &there, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && there.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.Renameat2(p.dir, p.name, p.dir, p.name+".link", unix.RENAME_EXCHANGE)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// While a container is made, a program of the host's, which nobody pauses, exchanges what is to be mounted for a link to
// somewhere else, and so what holds that: the call gets what was meant, or is refused. The runtime may leave an
// empty mount point there; TestExchangeOfMountPoints has those who are paused.
func TestExchangeOfAMountsSource(t *testing.T) {
	beside(t)
	// Of the calls that count there may be fewer within the first time; one of each kind there has to be.
	const longest, most = 5 * time.Second, 90 * time.Second
	for name, c := range map[string]struct {
		source, parent, target string // in the home, in the home, inside
		grants                 []string
		box                    func(l *lab, user string) types.Registration
		outside                []string // beside a canary
		least                  int
	}{
		"a write grant": {"project/sub", "project", "/home/project/sub", []string{"@write:/home/project/sub"}, func(l *lab, user string) types.Registration {
			return types.Registration{UserID: user}
		}, []string{"sub/canary"}, 12},
		"an app's data": {"apps/one/data", "apps/one", "/home/apps/one/data", none, func(l *lab, user string) types.Registration {
			return types.Registration{UserID: user, Permissions: types.Permissions{AppID: "one"}}
		}, nil, 6}, // a mount in a mount: there is nothing outside to put it on
		"a further mount": {"shared/sub", "shared", "/mnt/data", []string{"@write:/mnt/data"}, func(l *lab, user string) types.Registration {
			return types.Registration{
				UserID: user, Mounts: []types.Mount{{Source: l.at(user, "shared/sub"), Target: "/mnt/data"}},
				Permissions: types.Permissions{WriteDirs: []string{"/mnt/data"}},
			}
		}, []string{"sub/canary"}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			eachRuntime(t, func(t *testing.T, l *lab) {
				user := "swap-" + strings.ReplaceAll(strings.ReplaceAll(name, " ", ""), "'", "")
				dir, _ := outside(t, l, append(c.outside, "canary")...)
				l.put(t, user, c.source+"/inside", "inside")
				l.registerAs(t, user, c.box(l, user))
				var pairs []pair
				for _, name := range []string{c.source, c.parent} {
					holder, err := os.Open(filepath.Dir(l.at(user, name)))
					if err != nil {
						t.Fatal(err)
					}
					defer holder.Close()
					if err := os.Symlink(dir, l.at(user, name+".link")); err != nil {
						t.Fatal(err)
					}
					pairs = append(pairs, pair{int(holder.Fd()), filepath.Base(name)})
				}
				stop, swapped := make(chan struct{}), make(chan int, 1)
				go func() { swapped <- swap(stop, pairs...) }()
				// Refusals by a look before anything is made are many; those that count come later.
				done, less, refused, late, refusals := 0, 0, 0, 0, map[string]int{}
				call := func() (types.Output, error) {
					return l.client.Exec(t.Context(), user, types.Exec{Permissions: c.grants, Command: fmt.Sprintf("cat %[1]s/inside; cat %[1]s/canary %[1]s/*/canary; echo x >> %[1]s/x && echo written", c.target)})
				}
				lacks := func() bool { return refused == 0 || done+less+late == 0 }
				for begun := time.Now(); time.Since(begun) < longest && (done+late < c.least || done == 0 || late == 0) || time.Since(begun) < most && lacks(); {
					out, err := call()
					switch {
					case err != nil && strings.Contains(err.Error(), l.dir):
						t.Errorf("a host path is told: %v", err)
					case err != nil:
						refused++
						if kindOf(err) == types.Engine {
							late++
						}
						refusals[string(kindOf(err))+" "+err.Error()]++
					case strings.Contains(out.Stdout+out.Stderr, canary):
						t.Errorf("the canary was read: %q", out.Stdout)
					case strings.Contains(out.Stdout, "inside") && strings.Contains(out.Stdout, "written"):
						done++
					case err == nil && strings.Contains(out.Stdout+out.Stderr, "Read-only file system") || strings.Contains(out.Stderr, "No such file"):
						less++ // the mount has gone along with the name it was put on
					default:
						t.Errorf("neither done nor refused: %q %q", out.Stdout, out.Stderr)
					}
					unchanged(t, dir, append(c.outside, "canary"))
					l.cool(t, user)
				}
				close(stop)
				t.Logf("%d exchanges, %d calls done, %d that got less, %d refused, %d of them late: %v", <-swapped, done, less, refused, late, refusals)
				if lacks() {
					t.Errorf("%d calls done, %d that got less, %d refused, %d of them late", done, less, refused, late)
				}
				// Left alone, the same call gets what was meant.
				for _, p := range pairs {
					p.restore(t)
				}
				if out, err := call(); err != nil || !strings.Contains(out.Stdout, "inside") || !strings.Contains(out.Stdout, "written") {
					t.Errorf("without exchanges: %+v, %v", out, err)
				}
				unchanged(t, dir, append(c.outside, "canary"))
			})
		})
	}
}

// exchangeInside exchanges a leaf, its directory and the one above it, each for a link to outside.
//
//go:embed testdata/exchange.py
var exchangeInside string

// A command exchanges what the API's calls go through; they get what is inside, or are refused. It begins again where no call
// met an exchange, as when the container has been ended: one in whose home more happens than can be looked at is.
func TestExchangeAgainstTheFileCalls(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		dir, check := outside(t, l, "file", "b/file")
		l.register(t, "swapper")
		const rounds = 5
		for round := 1; !raceTheFileCalls(t, l, dir); round++ {
			if round == rounds {
				t.Errorf("no call met an exchange in %d rounds", rounds)
				break
			}
			l.sh(t, "swapper", "rm -rf /tmp/enough /home/a /home/aside /home/*.link")
		}
		check()
	})
}

// raceTheFileCalls reports whether some calls were refused, and some were not.
func raceTheFileCalls(t *testing.T, l *lab, dir string) bool {
	t.Helper()
	const calls, workers = 4000, 4
	l.put(t, "swapper", "a/b/file", "inside")
	out, ended := &lockedBuffer{}, make(chan error, 1)
	go func() {
		_, err := l.client.Attach(context.Background(), "swapper", types.Exec{Permissions: workspace, Argv: []string{"python3", "-c", exchangeInside, dir}}, client.Streams{Stdout: out, Stderr: out})
		ended <- err
	}()
	eventually(t, "the command exchanges", func() bool { return strings.Contains(out.String(), "begun") })
	var refused, turn atomic.Int64
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for n := turn.Add(1); n <= calls; n = turn.Add(1) {
				err := fileCall(t, l, n)
				if err == nil {
					continue
				}
				refused.Add(1)
				told := strings.ReplaceAll(err.Error(), dir, "") // what the command itself has put into its links
				if kind := kindOf(err); kind == "" || kind == types.Engine || strings.Contains(told, l.dir) {
					t.Errorf("refused with %v", err)
				}
			}
		})
	}
	work.Wait()
	l.write(t, "swapper", "/tmp/enough", "")
	if err := <-ended; err != nil && !strings.Contains(err.Error(), "the container was lost") {
		t.Error(err)
	}
	t.Logf("%d of %d calls were refused, while the command said: %s", refused.Load(), calls, strings.Join(strings.Fields(out.String()), " "))
	return refused.Load() > 0 && refused.Load() < calls
}

// fileCall is one of the API's calls for files, by turns.
func fileCall(t *testing.T, l *lab, n int64) (err error) {
	switch {
	case n%8 == 7:
		_, err = l.client.Upload(t.Context(), "swapper", "/home/a/b/file", strings.NewReader("inside"), false)
	case n%8 == 6:
		_, err = l.client.Write(t.Context(), "swapper", types.Write{Target: client.Target("/home/a/b/new/file"), Content: "inside"})
	case n%8 == 5:
		var listing types.Listing
		listing, err = l.client.ListDir(t.Context(), "swapper", "/home/a")
		if len(listing.Entries) == 2 && listing.Entries[1].Name == "file" {
			t.Error("what is outside was listed")
		}
	case n%2 == 0:
		_, err = l.client.Write(t.Context(), "swapper", types.Write{Target: client.Target("/home/a/b/file"), Content: "inside"})
	default:
		var got types.ReadResult
		got, err = l.client.Read(t.Context(), "swapper", types.Read{Target: client.Target("/home/a/b/file")})
		if err == nil && got.Content != "inside" {
			t.Errorf("read %q", got.Content)
		}
	}
	return err
}
