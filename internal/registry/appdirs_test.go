package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/pathmap"
)

// app is a sandbox of an app.
func app(t testing.TB, id, user, dir string) Sandbox {
	t.Helper()
	s := Sandbox{AppID: "mail"}
	var faults [3]error
	s.ID, faults[0] = ids.ParseSandbox(id)
	s.User, faults[1] = ids.ParseUser(user)
	s.WorkingDir, faults[2] = pathmap.ParseContainer(dir)
	for _, err := range faults {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestAppRootsFollowEveryChange compares the index with what the sandboxes say after random changes, on a registry of
// this host alone and on two that share their records.
func TestAppRootsFollowEveryChange(t *testing.T) {
	shared := &sharedRecords{at: map[string]int64{}}
	for name, hosts := range map[string][]*Registry{
		"files":  {open(t, t.TempDir())},
		"shared": {OpenShared(shared, nil), OpenShared(shared, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			for range 150 {
				r := hosts[random.IntN(len(hosts))]
				n := random.IntN(12)
				box := app(t, fmt.Sprint("box", n), []string{"alice", "bob"}[n%2], fmt.Sprint("/home/", random.IntN(3)))
				if random.IntN(3) == 0 {
					box.AppID = ""
				}
				switch random.IntN(4) {
				case 0:
					_ = r.Delete(box.ID) // there may be none
				case 1:
					_, _ = r.SetPaused(box.ID, random.IntN(2) == 0) // there may be none
				default:
					put(t, r, box, monday)
				}
				shared.deliver(hosts...)
				for _, r := range hosts {
					checkAppRoots(t, r)
				}
			}
		})
	}
}

func checkAppRoots(t *testing.T, r *Registry) {
	t.Helper()
	for _, name := range []string{"alice", "bob"} {
		user, err := ids.ParseUser(name)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, box := range r.List() {
			if box.User == user && box.AppID != "" {
				want = append(want, box.PolicyPermissions().AppRoot().String())
			}
		}
		slices.Sort(want)
		if want = slices.Compact(want); !slices.Equal(texts(r.AppRoots(user)), want) {
			t.Fatalf("%s has %q, not %q", name, texts(r.AppRoots(user)), want)
		}
	}
	if len(r.List()) == 0 && len(r.apps) != 0 {
		t.Errorf("left of users without sandboxes: %v", r.apps)
	}
}

// Other users' registrations, and a user's own elsewhere, cost a user's calls nothing.
func TestAppRootsAreMadeOncePerChange(t *testing.T) {
	r := open(t, t.TempDir())
	alice := app(t, "a", "alice", "/home")
	put(t, r, alice, monday)
	before := r.AppRoots(alice.User)
	put(t, r, app(t, "b", "bob", "/home"), monday)
	put(t, r, app(t, "c", "alice", "/home"), monday)
	if after := r.AppRoots(alice.User); len(after) != 1 || &after[0] != &before[0] {
		t.Errorf("%q was made again from %q", texts(after), texts(before))
	}
	put(t, r, app(t, "d", "alice", "/home/x"), monday)
	if after := r.AppRoots(alice.User); len(after) != 2 || len(before) != 1 {
		t.Errorf("%q became %q", texts(before), texts(after))
	}
}

// BenchmarkAppRoots is what the first call after a registration pays for a list of app directories. It must not
// depend on how many users there are.
func BenchmarkAppRoots(b *testing.B) {
	for _, users := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("%d users", users), func(b *testing.B) {
			r := OpenShared(toldAtOnce(func(string, []byte, int64) error { return nil }), nil)
			for i := range users {
				if _, _, err := r.Put(app(b, fmt.Sprint("box", i), fmt.Sprint("user", i), "/home"), monday); err != nil {
					b.Fatal(err)
				}
			}
			own := app(b, "box0", "user0", "/home")
			for i := 0; b.Loop(); i++ {
				own.SkillsDir = fmt.Sprint("/skills/", i%2)
				if _, _, err := r.Put(own, monday); err != nil {
					b.Fatal(err)
				}
				if len(r.AppRoots(own.User)) != 1 {
					b.Fatal("not one")
				}
			}
		})
	}
}

func texts(paths []pathmap.ContainerPath) (list []string) {
	for _, path := range paths {
		list = append(list, path.String())
	}
	return list
}
