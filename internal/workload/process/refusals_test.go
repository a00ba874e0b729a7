package process

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

func TestRefusals(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.start(Intent{})
	stop := func(user, id string) error { _, err := s.Stop(t.Context(), user, id, syscall.SIGTERM); return err }
	start := func(n Intent) error { _, _, err := s.Start(t.Context(), n, quota.Token{}, nil, nil); return err }
	get := func(user, id string) error { _, err := s.Get(user, id); return err }
	log := func(user, id string) error { _, err := s.Log(user, id); return err }
	for name, test := range map[string]struct {
		err   error
		class func(error) bool
		says  string
	}{
		"no user":        {start(Intent{Command: "x"}), errdefs.IsInvalidArgument, "userId"},
		"no command":     {start(Intent{UserID: "alice"}), errdefs.IsInvalidArgument, "command"},
		"blank command":  {start(Intent{UserID: "alice", Command: " \n"}), errdefs.IsInvalidArgument, "command"},
		"no program":     {start(Intent{UserID: "alice", Argv: []string{"", "x"}}), errdefs.IsInvalidArgument, "argv[0]"},
		"two commands":   {start(Intent{UserID: "alice", Command: "x", Argv: []string{"x"}}), errdefs.IsInvalidArgument, "exclude"},
		"unknown":        {get("alice", "p-aaaaaaaaaaaa"), errdefs.IsNotFound, "p-aaaaaaaaaaaa"},
		"unknown stop":   {stop("alice", "../x"), errdefs.IsNotFound, "../x"},
		"unknown remove": {s.Remove(t.Context(), "alice", "p-aaaaaaaaaaaa"), errdefs.IsNotFound, "p-aaaaaaaaaaaa"},
		"no log yet":     {log("alice", r.ID), errdefs.IsNotFound, "no log"},
	} {
		if test.err == nil || !test.class(test.err) || !strings.Contains(test.err.Error(), test.says) {
			t.Errorf("%s: %v", name, test.err)
		}
	}
	// Another user's is like one that is not there, to the letter.
	for name, call := range map[string]func(user, id string) error{
		"get": get, "log": log, "stop": stop,
		"remove": func(user, id string) error { return s.Remove(t.Context(), user, id) },
	} {
		const nobodys = "p-aaaaaaaaaaaa"
		other, unknown := call("bob", r.ID), call("bob", nobodys)
		if other == nil || unknown == nil || strings.ReplaceAll(other.Error(), r.ID, nobodys) != unknown.Error() {
			t.Errorf("%s: %v, but of one that is not there: %v", name, other, unknown)
		}
	}
	if list := s.List("bob"); len(list) != 0 {
		t.Errorf("bob sees %v", list)
	}
	says(t, s.get(r.ID), "running/running exit -, pid")
}

func TestLimits(t *testing.T) {
	h := newHost(t)
	bounds := func(perUser, total int) quota.Limits {
		return quota.Limits{PerUser: quota.Bounds{Processes: perUser, ExposedPorts: 1}, Total: quota.Bounds{Processes: total}}
	}
	quotas := quota.New(bounds(2, 3))
	s := h.serve(func(c *Config) { c.Quotas = quotas })
	ended := s.start(Intent{})
	s.start(Intent{})
	_, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "x"}, quota.Token{}, nil, nil)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), `user "alice" has 2 processes, which is the most (quotas.perUser.processes): stop one, or try again when one has ended`) {
		t.Errorf("a third: %v", err)
	}
	s.exits(ended.ID, Exit{})
	s.start(Intent{UserID: "bob"})
	if _, _, err := s.Start(t.Context(), Intent{UserID: "carol", Command: "x"}, quota.Token{}, nil, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a fourth in all: %v", err)
	}
	if got := s.Stats(); got.ByStatus[Running] != 2 || got.ByStatus[Exited] != 1 || got.Restarts != 0 {
		t.Errorf("%+v", got)
	}
	quotas.Use(bounds(2, 4))
	s.start(Intent{UserID: "carol"})
	if err := s.Remove(t.Context(), "alice", ended.ID); err != nil {
		t.Fatal(err)
	}
	s.start(Intent{})
}

func TestALongNameIsCutBetweenCharacters(t *testing.T) {
	s := newHost(t).serve()
	for i, test := range []struct{ name, want string }{
		{strings.Repeat("é", 80), strings.Repeat("é", 80)},
		{strings.Repeat("é", 81), strings.Repeat("é", 80)},
		{strings.Repeat("日", 79) + "ab", strings.Repeat("日", 79) + "a"},
	} {
		r, notices, err := s.Start(t.Context(), Intent{UserID: fmt.Sprint("user-", i), Command: "x", Name: test.name}, quota.Token{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Name != test.want || (len(notices) == 1) != (test.name != test.want) {
			t.Errorf("%s is named %s, with notices %q", test.name, r.Name, notices)
		}
	}
}
