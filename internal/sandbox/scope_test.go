package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// What is another's is answered for as what does not exist, to the letter.
func TestOthersSandboxesDoNotExist(t *testing.T) {
	s := newService(t, nil, "")
	if _, _, err := s.Put("bobs", Registration{UserID: "bob"}); err != nil {
		t.Fatal(err)
	}
	view := s.Scoped(ids.OnlyUsers(user(t, "alice")), quota.Token{})
	for _, call := range []struct {
		name string
		do   func(id string) error
	}{
		{"get", func(id string) error { _, err := view.Get(id); return err }},
		{"delete", func(id string) error { return view.Delete(t.Context(), id) }},
		{"pause", func(id string) error { _, err := view.Pause(t.Context(), id); return err }},
		{"resume", func(id string) error { _, err := view.Resume(t.Context(), id); return err }},
		{"exec", func(id string) error { _, err := view.Exec(t.Context(), id, Request{Command: "ls"}, nil); return err }},
		{"exec inside", func(id string) error {
			_, err := view.Exec(t.Context(), id, Request{Command: "ls", InSandbox: true}, nil)
			return err
		}},
		{"explain inside", func(id string) error {
			_, err := view.Explain(t.Context(), id, true, Confinement{})
			return err
		}},
		{"process inside", func(id string) error {
			_, _, err := view.StartProcess(t.Context(), id, process.Intent{Command: "ls", InSandbox: true}, nil)
			return err
		}},
		{"read", func(id string) error { _, err := view.Read(t.Context(), id, files.ReadRequest{Path: "a"}); return err }},
		{"processes", func(id string) error { _, err := view.Processes(id); return err }},
	} {
		bobs, nobodys := call.do("bobs"), call.do("gone")
		if !cerrdefs.IsNotFound(bobs) || strings.ReplaceAll(bobs.Error(), "bobs", "gone") != nobodys.Error() {
			t.Errorf("%s: %v, and of what does not exist: %v", call.name, bobs, nobodys)
		}
	}
	if diff := cmp.Diff([]string{"agent"}, sandboxIDs(view.List())); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"agent", "bobs"}, sandboxIDs(s.List())); diff != "" {
		t.Errorf("for everyone: want (-), got (+):\n%s", diff)
	}
	if _, err := s.Get("bobs"); err != nil {
		t.Errorf("bob's sandbox is gone: %v", err)
	}
}

// A container that is made for the sake of /tmp is made on behalf of the caller's token, which bounds it.
func TestTmpIsAskedForByTheCallersToken(t *testing.T) {
	executor := &fakeExecutor{}
	token := quota.Token{Name: "t", Some: true, Own: quota.Bounds{Containers: 1}}
	view := newService(t, executor, "").Scoped(ids.OnlyUsers(user(t, "alice")), token)
	_, read := view.Read(t.Context(), "agent", files.ReadRequest{Path: "/tmp/x"})
	_, run := view.Exec(t.Context(), "agent", Request{Command: "true", Confinement: Confinement{Home: "/tmp/home"}}, nil)
	if diff := cmp.Diff([]quota.Token{token, token}, executor.tmpFor); diff != "" {
		t.Errorf("%v, %v, want (-), got (+):\n%s", read, run, diff)
	}
}

// A home in /tmp is made when the command has a container: another one that has the same /tmp is not
// held while the command waits for its own.
func TestAHomeInTmpIsMadeInTheCommandsContainer(t *testing.T) {
	executor := &fakeExecutor{tmp: t.TempDir()}
	if err := unix.Mount("tmpfs", executor.tmp, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(executor.tmp, 0) })
	executor.runIn = func(ctx context.Context, _ dockerexec.Spec, c warm.Command) (warm.Result, error) {
		if executor.tmpHeld != 0 {
			t.Errorf("%d hold /tmp before the command has a container", executor.tmpHeld)
		}
		if c.Prepare == nil {
			t.Fatal("nothing is prepared in its container")
		}
		done, err := c.Prepare(ctx, nil)
		defer done()
		if home, err := os.Stat(filepath.Join(executor.tmp, "home")); err != nil || !home.IsDir() {
			t.Errorf("it has no home: %v", err)
		}
		return warm.Result{}, err
	}
	s := newService(t, executor, "")
	request := Request{Command: "true", Confinement: Confinement{Home: "/tmp/home"}}
	if _, err := s.Exec(t.Context(), "agent", request, nil); err != nil || executor.tmpHeld != 0 {
		t.Errorf("%d hold /tmp in the end: %v", executor.tmpHeld, err)
	}
}

func sandboxIDs(list []Sandbox) []string {
	var names []string
	for _, box := range list {
		names = append(names, box.ID.String())
	}
	return names
}

// TestScopedCallersRegisterTheirOwn holds a registration by a caller of alice's against that of one who acts for
// everyone.
func TestScopedCallersRegisterTheirOwn(t *testing.T) {
	s := newService(t, nil, "")
	s.allowMounts(nil, s.usersDir(), "/srv")
	if _, _, err := s.Put("bobs", Registration{UserID: "bob"}); err != nil {
		t.Fatal(err)
	}
	of := func(user, name string) []MountRequest {
		return []MountRequest{{Source: s.usersDir() + "/" + user + "/" + name, Target: "/mnt/data"}}
	}
	for _, tt := range []struct {
		name  string
		id    string
		r     Registration
		class func(error) bool // nil for what is taken
		want  string
	}{
		{"her own", "new", Registration{UserID: "alice", Network: true}, nil, ""},
		{"her own again", "agent", Registration{UserID: "alice"}, nil, ""},
		{"her own folder", "new", Registration{UserID: "alice", Mounts: of("alice", "data")}, nil, ""},
		{"another user's", "new", Registration{UserID: "bob"}, cerrdefs.IsPermissionDenied, `userId "bob": this caller may act for alice alone`},
		{"hers, for another user", "agent", Registration{UserID: "bob"}, cerrdefs.IsPermissionDenied, "for alice alone"},
		{"a name that another user has", "bobs", Registration{UserID: "alice"}, cerrdefs.IsNotFound, `sandbox "bobs" is not this caller's: take another id`},
		{"another user's folder", "new", Registration{UserID: "alice", Mounts: of("bob", "data")}, cerrdefs.IsPermissionDenied, "mounts[0].source: only a caller who acts for everyone"},
		{"a folder whose name begins alike", "new", Registration{UserID: "alice", Mounts: of("alice2", "data")}, cerrdefs.IsPermissionDenied, "mounts[0].source"},
		{"a folder of the operator's", "new", Registration{UserID: "alice", Mounts: []MountRequest{{Source: "/srv/x", Target: "/mnt/x"}}}, cerrdefs.IsPermissionDenied, "mounts[0].source"},
		{"skills of another's", "new", Registration{UserID: "alice", SkillsDir: "/srv/skills"}, cerrdefs.IsPermissionDenied, "skillsDir"},
		{"the control socket", "new", Registration{UserID: "alice", Events: true}, cerrdefs.IsPermissionDenied, "permissions.events"},
		{"a user that cannot be", "new", Registration{UserID: "Alice"}, cerrdefs.IsInvalidArgument, "upper-case"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view := s.Scoped(ids.OnlyUsers(user(t, "alice")), quota.Token{})
			_, _, err := view.Put(tt.id, tt.r)
			switch {
			case tt.class == nil && err != nil:
				t.Error(err)
			case tt.class != nil && (!tt.class(err) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), `"bob"`) != (tt.r.UserID == "bob")):
				t.Errorf("%v, want %s", err, tt.want)
			}
			if box, err := s.Get("bobs"); err != nil || box.User != user(t, "bob") {
				t.Errorf("bob's sandbox is now %+v, %v", box, err)
			}
		})
	}
	if _, _, err := s.Put("everyones", Registration{UserID: "alice", Events: true, SkillsDir: "/srv/skills", Mounts: of("bob", "data")}); err != nil {
		t.Errorf("by a caller who acts for everyone: %v", err)
	}
}

func TestDecisionsAndContainersOfSomeUsers(t *testing.T) {
	s := newService(t, nil, "")
	cfg := *s.cfg()
	cfg.Decisions = decisions.New(10)
	s.Use(cfg)
	s.runner = holding{&fakeExecutor{}, []dockerexec.Summary{{Name: "a", User: "alice"}, {Name: "b", User: "bob"}}}
	for _, name := range []string{"alice", "bob", ""} {
		cfg.Decisions.Add(decisions.Decision{User: name, Name: "of-" + name, Via: decisions.DNS, Verdict: decisions.Denied})
	}
	view := s.Scoped(ids.OnlyUsers(user(t, "alice")), quota.Token{})
	if list := view.Decisions().Recent(decisions.Filter{}, 0); len(list) != 1 || list[0].User != "alice" {
		t.Errorf("alice's decisions: %+v", list)
	}
	if list := view.Decisions().Recent(decisions.Filter{User: "bob"}, 0); len(list) != 0 {
		t.Errorf("bob's decisions for alice: %+v", list)
	}
	if list := view.Containers(); len(list) != 1 || list[0].User != "alice" {
		t.Errorf("alice's containers: %+v", list)
	}
	if list := view.Pooled(); list != nil {
		t.Errorf("nobody's containers, for alice: %+v", list)
	}
	if list := s.Pooled(); len(list) != 1 {
		t.Errorf("nobody's containers, for everyone: %+v", list)
	}
	if n, m := len(s.Decisions().Recent(decisions.Filter{}, 0)), len(s.Containers()); n != 3 || m != 2 {
		t.Errorf("for everyone: %d decisions, %d containers", n, m)
	}
	if none := s.Scoped(ids.Users{}, quota.Token{}); len(none.Decisions().Recent(decisions.Filter{}, 0)) != 0 || len(none.List()) != 0 || len(none.Containers()) != 0 {
		t.Error("there is something for nobody")
	}
}

// holding is an executor that has containers.
type holding struct {
	*fakeExecutor
	list []dockerexec.Summary
}

func (h holding) Containers() []dockerexec.Summary { return h.list }

func (holding) Pooled() []dockerexec.Summary { return []dockerexec.Summary{{Name: "p"}} }
