package rootfs

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/waittest"
	"github.com/daycare-run/sandbox/pathmap"
)

// A home whose storage hangs holds its own user up alone, who is told so.
func TestHungHomeHoldsUpItsUserAlone(t *testing.T) {
	t.Parallel()
	p := NewPlanner(Config{UsersDir: t.TempDir(), HomeOwners: Owners{UID: testUID, GID: testGID, Last: testUID + 9}}, zerolog.Nop())
	made := NewPreparer(p.UsersDir(), zerolog.Nop())
	hung, fine := masked(t, p.UsersDir(), "hung"), masked(t, p.UsersDir(), "fine")
	hung.Masks[0].Place = filepath.Join(p.UsersDir(), "hung", "home", ".ssh")
	if _, err := made.Prepare(hung); err != nil {
		t.Fatal(err)
	}
	end := waittest.Hang(t, filepath.Join(p.UsersDir(), "hung", "home"))
	open := func(user string) error {
		h, err := p.OpenHome(t.Context(), user)
		if err == nil {
			h.Close()
		}
		return err
	}
	prepare := func(spec dockerexec.Spec) error { _, err := made.Prepare(spec); return err }
	released := make(chan struct{})
	silent := make(chan error, 2)
	go func() { silent <- open("hung") }()
	go func() {
		made.Release(hung)
		silent <- prepare(hung)
		close(released)
	}()
	for what, err := range map[string]error{"another's home": open("new"), "another's container": prepare(fine)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 {
		select {
		case err := <-silent:
			if !cerrdefs.IsUnavailable(err) {
				t.Errorf("of what does not answer: %v", err)
			}
		case <-time.After(6 * answerLimit):
			t.Fatal("who asks what does not answer waits for it")
		}
	}
	<-released
	if err := prepare(fine); err != nil {
		t.Errorf("another's container, after one was given up: %v", err)
	}
	end()
	waittest.Until(t, "the home answers again", func() bool { return !cerrdefs.IsUnavailable(open("hung")) })
}

// A removal, which may be that of a sandbox whose time has come, is put off.
func TestRemovalsDoNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	p := NewPlanner(Config{UsersDir: filepath.Join(t.TempDir(), "users")}, zerolog.Nop())
	end := waittest.Hang(t, p.UsersDir())
	removed := make(chan error, 1)
	go func() { removed <- p.RemoveUser(hostfs.NewTrash(func(string, error) {}), "alice") }()
	select {
	case err := <-removed:
		if !cerrdefs.IsUnavailable(err) {
			t.Error(err)
		}
	case <-time.After(6 * answerLimit):
		t.Error("it waits for what does not answer")
		end()
		<-removed
	}
}

func lockedHandle(p *Preparer, events []byte) []dockerexec.Fingerprint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handle(events)
}

// The watch gives up the containers of a home whose storage hangs, and holds nobody else up.
func TestTheWatchDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	for what, watch := range map[string]func(p *Preparer) []dockerexec.Fingerprint{
		"it begins":       func(p *Preparer) []dockerexec.Fingerprint { return p.begin(p.watches.fd) },
		"events are lost": func(p *Preparer) []dockerexec.Fingerprint { return lockedHandle(p, told(-1, unix.IN_Q_OVERFLOW, 0)) },
		"something appears": func(p *Preparer) []dockerexec.Fingerprint {
			return lockedHandle(p, event(p, "hung", ".ssh"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p, specs := watching(t, "hung", "fine")
			p.mu.Unlock()
			defer p.mu.Lock() // which watching unlocks
			end := waittest.Hang(t, filepath.Join(p.usersDir, "hung", "home"))
			defer end()
			gone := make(chan []dockerexec.Fingerprint, 1)
			go func() { gone <- watch(p) }()
			select {
			case got := <-gone:
				if !slices.Equal(got, []dockerexec.Fingerprint{specs[0].Fingerprint()}) {
					t.Errorf("%q have to go, want %q", got, specs[0].Fingerprint())
				}
			case <-time.After(6 * answerLimit):
				end()
				<-gone
				t.Fatal("it waits for what does not answer")
			}
			if _, err := p.Prepare(masked(t, p.usersDir, "new")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A container of the pool whose home does not answer any more is not watched for its user, and holds nobody else up.
func TestRebindOfWhatHangs(t *testing.T) {
	t.Parallel()
	p, specs := watching(t, dockerexec.PoolUser("x"))
	p.mu.Unlock()
	defer p.mu.Lock() // which watching unlocks
	to := masked(t, p.usersDir, "hung")
	end := waittest.Hang(t, filepath.Join(p.usersDir, "hung", "home"))
	defer end()
	rebound := make(chan error, 1)
	go func() { rebound <- p.Rebind(specs[0], to) }()
	select {
	case err := <-rebound:
		if !cerrdefs.IsUnavailable(err) {
			t.Errorf("of what does not answer: %v", err)
		}
	case <-time.After(6 * answerLimit):
		end()
		<-rebound
		t.Fatal("it waits for what does not answer")
	}
	p.Release(to)
	if len(p.mounted) != 0 {
		t.Errorf("left: %v", p.mounted)
	}
}

// All that Specs mount is asked at the same time, before the first answer is waited for, and each directory once.
func TestAllAreAskedTogether(t *testing.T) {
	t.Parallel()
	p := &Preparer{usersDir: t.TempDir()}
	var spec dockerexec.Spec
	for i := range 3 {
		dir := filepath.Join(p.usersDir, "other", fmt.Sprint(i))
		defer waittest.Hang(t, dir)()
		spec.Mounts = append(spec.Mounts, dockerexec.Mount{Source: dir, Target: fmt.Sprint("/mnt/", i)})
	}
	home := waittest.Hang(t, filepath.Join(p.usersDir, "alice", "home"))
	defer home()
	one, two := spec, spec
	one.User, two.User = "alice", "bob"
	answers := p.askAll(slices.Values([]dockerexec.Spec{one, two}))
	p.questions.mu.Lock()
	asked := len(p.questions.open)
	p.questions.mu.Unlock()
	if asked < 4 || asked > 5 { // bob's home, which is not there, may have answered
		t.Errorf("%d directories are asked", asked)
	}
	if err := answers(two); !cerrdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
}

// What does not answer is neither searched for links nor for a place of caches.
func TestPlansDoNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := NewPlanner(Config{UsersDir: filepath.Join(root, "users"), HomeOwners: Owners{UID: testUID, GID: testGID}}, zerolog.Nop())
	h, err := p.OpenHome(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	end := waittest.Hang(t, filepath.Join(root, "hung"))
	defer end()
	host, err := pathmap.ParseHost(filepath.Join(root, "hung"))
	if err != nil {
		t.Fatal(err)
	}
	inside, err := pathmap.ParseContainer("/mnt/hung")
	if err != nil {
		t.Fatal(err)
	}
	path, err := inside.Resolve("a/b")
	if err != nil {
		t.Fatal(err)
	}
	at := pathmap.Mount{Host: host, Container: inside}
	paths, err := pathmap.New(at)
	if err != nil {
		t.Fatal(err)
	}
	failed, cached := make(chan error, 3), make(chan bool, 1)
	go func() { _, err := p.Follow(paths, path); failed <- err }()
	go func() { _, err := p.OpenRoot(t.Context(), "alice", at); failed <- err }()
	go func() {
		b := &builder{Request: Request{Paths: paths}, home: h, asked: map[pathmap.Mount]bool{}}
		failed <- b.addRegion(policy.Region{Path: path, Mode: policy.ReadOnly})
	}()
	go func() { cached <- h.MakeCaches(at, ".", false) }()
	for range 4 {
		select {
		case err := <-failed:
			if !cerrdefs.IsUnavailable(err) {
				t.Error(err)
			}
		case made := <-cached:
			if made {
				t.Error("there are caches")
			}
		case <-time.After(6 * answerLimit):
			t.Error("it waits for what does not answer")
			end()
		}
	}
}
