package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// fill lets the pool do all that it would.
func (p *Pool) fillNow(t *testing.T) {
	t.Helper()
	p.last, p.unlike = time.Time{}, time.Time{}
	for range 100 {
		if p.step(t.Context()) == fillEvery {
			return
		}
	}
	t.Fatal("it is never full")
}

// The kinds of calls that come are kept ready, as many as may be, the latest first; over a restart, too.
func TestPoolFollowsFirstCalls(t *testing.T) {
	s, pool, fake := newPool(t, 2, 7)
	kinds := []struct {
		box Registration
		r   Request
	}{
		{Registration{}, Request{Confinement: Confinement{Permissions: []string{"@workspace"}}}},
		{Registration{WorkingDir: "/home/project"}, Request{Confinement: Confinement{Permissions: []string{"@workspace"}}}},
		{Registration{Network: true}, Request{Confinement: Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"a.example"}}}},
		{Registration{Network: true}, Request{Confinement: Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"*"}}}},
	}
	for i, kind := range kinds {
		if err := first(t, s, fmt.Sprint("first-", i), kind.box, kind.r); err != nil {
			t.Fatal(err)
		}
	}
	pool.fillNow(t)
	if all, ready := fake.Stocked(); len(all) != 4 || ready != 7 {
		t.Fatalf("%v", all)
	}
	for i, kind := range kinds {
		user := fmt.Sprint("second-", i)
		if err := first(t, s, user, kind.box, kind.r); err != nil {
			t.Fatal(err)
		}
		if fake.bound[user] == "" {
			t.Errorf("%s got nothing", user)
		}
		if err := first(t, s, user, kind.box, kind.r); err != nil { // it has a home now
			t.Fatal(err)
		}
	}
	if got := pool.Stats(); got.Asked[poolHit] != 4 || got.Asked[poolEmpty] != 4 || got.Classes != 4 || got.Refills != 7 {
		t.Errorf("%+v", got)
	}
	for _, waits := range fake.waits {
		for _, spec := range waits {
			if len(spec.Egress.Domains) != 0 && !spec.Egress.IsOpen() || !spec.IsPooled() {
				t.Errorf("%+v", spec)
			}
		}
	}
	pool.classes.save(zerolog.Nop())
	again := OpenPool(pool.classes.file, PoolConfig{Size: 2, Max: 7}, pool.planner, fake, nil, nil, zerolog.Nop())
	if fmt.Sprint(again.classes.list()) != fmt.Sprint(pool.classes.list()) {
		t.Errorf("after a restart: %v", again.classes.list())
	}
	pool.Use(PoolConfig{Size: 0, Max: 5})
	pool.fillNow(t)
	for class, most := range fake.trimmed {
		if most != 0 {
			t.Errorf("turned off, %d of %s may stay", most, class)
		}
	}
}

// Homes whose owner is of former settings go to nobody.
func TestPoolFollowsTheOwnerOfHomes(t *testing.T) {
	s, pool, fake := newPool(t, 2, 5)
	cfg := *pool.cfg.Load()
	if err := first(t, s, "first", Registration{}, Request{}); err != nil {
		t.Fatal(err)
	}
	waits := func() (users []string) {
		pool.fillNow(t)
		for _, list := range fake.waits {
			for _, spec := range list {
				users = append(users, spec.User)
			}
		}
		return users
	}
	before := waits()
	pool.Use(cfg)
	if now := waits(); len(before) != 2 || !slices.Equal(before, now) {
		t.Errorf("the settings are read again, and nothing has changed: %q, then %q", before, now)
	}
	cfg.Homes = rootfs.Owners{UID: testUID + 7, GID: testGID}
	pool.Use(cfg)
	now := waits()
	if len(now) != 2 || slices.Contains(before, now[0]) || slices.Contains(before, now[1]) {
		t.Errorf("with another owner: %q, after %q", now, before)
	}
}

// Calls with anything that is not their home's are of no class, and are run all the same.
func TestPoolOfNoUse(t *testing.T) {
	s, pool, fake := newPool(t, 2, 5)
	workspace := Confinement{Permissions: []string{"@workspace"}}
	var long []string
	for i := range maxClassSize/4000 + 1 {
		long = append(long, fmt.Sprint("/home/", i)+strings.Repeat("/long", 800))
	}
	for name, kind := range map[string]struct {
		box Registration
		r   Request
	}{
		"app":    {Registration{AppID: "app"}, Request{}},
		"denied": {Registration{}, Request{Confinement: Confinement{Permissions: workspace.Permissions, Restrictions: restrictions("/home/x")}}},
		"long":   {Registration{WriteDirs: long}, Request{}},
	} {
		if err := first(t, s, name, kind.box, kind.r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := first(t, s, "refused", Registration{}, Request{Confinement: Confinement{Permissions: []string{"@network"}}}); err == nil {
		t.Error("what is not granted is run")
	}
	if got := pool.Stats(); got.Asked[poolUnlike] != 3 || got.Classes != 0 {
		t.Errorf("%+v", got)
	}
	// What fails there changes nothing for the call.
	if err := first(t, s, "before", Registration{}, Request{Confinement: workspace}); err != nil {
		t.Fatal(err)
	}
	pool.fillNow(t)
	if err := os.RemoveAll(filepath.Join(s.usersDir(), ".pool")); err != nil {
		t.Fatal(err)
	}
	if err := first(t, s, "unlucky", Registration{}, Request{Confinement: workspace}); err != nil {
		t.Error(err)
	}
	fake.err = errors.New("no")
	pool.last = time.Time{}
	if wait := pool.step(t.Context()); wait != fillAgain || pool.Stats().Asked[poolFailed] != 1 {
		t.Errorf("after a failure it waits %v, %+v", wait, pool.Stats())
	}
}

// While calls come that make containers of their own, whatever waits, the pool makes one only a part of the time.
func TestPoolRestsBesideOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, pool, fake := newPool(t, 2, 5)
		workspace := Confinement{Permissions: []string{"@workspace"}}
		fake.takes = 300 * time.Millisecond
		come := func(user string, c Confinement) {
			t.Helper()
			if err := first(t, s, user, Registration{}, Request{Confinement: c}); err != nil {
				t.Fatal(err)
			}
			waittest.Pass(fillAfter + time.Millisecond)
		}
		makes := func(want uint64, when string) {
			t.Helper()
			if pool.step(t.Context()); pool.Stats().Refills != want {
				t.Errorf("%s it has made %d, want %d", when, pool.Stats().Refills, want)
			}
		}
		come("first", workspace)
		makes(1, "for a kind of call that comes")
		come("unlike", Confinement{Permissions: workspace.Permissions, Restrictions: restrictions("/home/x")})
		makes(1, "beside a call of another kind")
		waittest.Pass(fillRests * fake.takes)
		makes(2, "after a rest")
		waittest.Pass(unlikeFor)
		come("second", workspace)
		makes(3, "when no such call has come for long")
		come("third", workspace)
		makes(4, "and at once again")
	})
}

// Where there are processors to spare, several containers are made at a time, and one that cannot be
// made holds up no other.
func TestPoolIsFilledSeveralAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, pool, fake := newPool(t, 4, 8)
		cfg := *pool.cfg.Load()
		cfg.AtOnce = 3
		pool.Use(cfg)
		fake.takes = 300 * time.Millisecond
		for user, tags := range map[string][]string{"one": nil, "other": {"@workspace"}} {
			if err := first(t, s, user, Registration{}, Request{Confinement: Confinement{Permissions: tags}}); err != nil {
				t.Fatal(err)
			}
		}
		waittest.Pass(fillAfter + time.Millisecond)
		for _, want := range []uint64{3, 6, 8, 8} {
			begun := time.Now()
			wait := pool.step(t.Context())
			if got := pool.Stats().Refills; got != want || time.Since(begun) > fake.takes || (wait == fillEvery) != (time.Since(begun) == 0) {
				t.Errorf("it has made %d in %v, want %d; next in %v", got, time.Since(begun), want, wait)
			}
		}
		fake.waits = map[string][]dockerexec.Spec{}
		fake.broken = pool.classes.list()[0].key
		for range 8 {
			if wait := pool.step(t.Context()); wait == fillEvery {
				t.Error("nothing is missing")
			}
		}
		if len(fake.waits) != 1 || len(fake.waits[pool.classes.list()[1].key]) != 4 {
			t.Errorf("%d classes wait", len(fake.waits))
		}
	})
}

// A user has one vote, and a token's users do not decide for others.
func TestVotesForClasses(t *testing.T) {
	p := readClasses(filepath.Join(t.TempDir(), "classes.json"), zerolog.Nop())
	keys := func() string {
		var list []string
		for _, c := range p.list() {
			list = append(list, c.key)
		}
		return strings.Join(list, " ")
	}
	for i := range 3 {
		p.note(vote{keyedClass{key: "usual"}, fmt.Sprint("user-", i), "a"})
	}
	for i := range 10 * maxClasses {
		p.note(vote{keyedClass{key: fmt.Sprint("odd-", i)}, "odd", "a"})
	}
	if got := keys(); got != "usual odd-79" || len(p.all()) != 2 {
		t.Errorf("one user: %s, of %d", got, len(p.all()))
	}
	for i := range 10 * maxVotes { // by many, two for each
		p.note(vote{keyedClass{key: fmt.Sprint("odd-", i/2)}, fmt.Sprint("odd-", i), "b"})
	}
	if got := keys(); !strings.HasPrefix(got, "usual odd-") || len(p.list()) != maxClasses || len(p.votes) != maxVotes || len(p.all()) > maxVotes {
		t.Errorf("another token's: %s, %d votes", got, len(p.votes))
	}
	p.drop("usual")
	if got := keys(); strings.Contains(got, "usual") {
		t.Errorf("dropped: %s", got)
	}
}

// A pool that the file system is of no use to turns itself off, says so once, and tries again when it is told to; calls
// are run all the same.
func TestPoolTurnsItselfOff(t *testing.T) {
	s, pool, fake := newPool(t, 2, 5)
	workspace := Request{Confinement: Confinement{Permissions: []string{"@workspace"}}}
	if err := first(t, s, "before", Registration{}, workspace); err != nil {
		t.Fatal(err)
	}
	users := 0
	fails := func(n int, why error) {
		t.Helper()
		for range n {
			users++
			pool.fillNow(t)
			fake.unbound = why
			if err := first(t, s, fmt.Sprint("user-", users), Registration{}, workspace); err != nil {
				t.Errorf("with %v the call fails: %v", why, err)
			}
			fake.unbound = nil
		}
	}
	fails(2, dockerexec.ErrHomesStay)
	fails(2, errors.New("another reason"))
	fails(1, nil)
	fails(2, fmt.Errorf("user 7: %w", dockerexec.ErrHomesStay))
	if off := pool.Off(); off != "" || pool.Stats().Off != "" {
		t.Errorf("it has given up too early: %s", off)
	}
	fails(1, fmt.Errorf("user 7: %w", dockerexec.ErrHomesStay))
	if got := pool.Stats(); got.Off == "" || strings.Contains(got.Off, "user 7") || got.Asked[poolFailed] != 7 || len(s.Health(t.Context()).Warnings) != 1 {
		t.Errorf("%+v, %v", got, s.Health(t.Context()).Warnings)
	}
	made := fake.made
	fails(2, nil)
	for class, most := range fake.trimmed {
		if most != 0 {
			t.Errorf("turned off, %d of %s may stay", most, class)
		}
	}
	if got := pool.Stats(); fake.made != made || got.Asked[poolHit] != 1 {
		t.Errorf("turned off, %d were made: %+v", fake.made-made, got)
	}
	pool.Use(PoolConfig{Size: 2, Max: 5})
	fails(1, nil)
	if got := pool.Stats(); got.Off != "" || got.Asked[poolHit] != 2 {
		t.Errorf("turned on again: %+v", got)
	}
	fake.err = fmt.Errorf("cannot fill: %w", dockerexec.ErrHomesStay)
	for range maxFutile {
		fake.waits = map[string][]dockerexec.Spec{}
		pool.last = time.Time{}
		pool.step(t.Context())
	}
	if pool.Off() == "" {
		t.Error("it cannot be filled, and is on")
	}
}

// A class of which none can be made keeps no other one waiting, and is tried again.
func TestPoolWithAClassThatFails(t *testing.T) {
	s, pool, fake := newPool(t, 1, 5)
	fails := Request{Confinement: Confinement{Permissions: []string{"@workspace"}}}
	for user, r := range map[string]Request{"a": fails, "b": fails, "c": {}} {
		if err := first(t, s, user, Registration{}, r); err != nil {
			t.Fatal(err)
		}
	}
	list := pool.classes.list()
	fake.broken = list[0].key
	for range 3 {
		pool.last = time.Time{}
		pool.step(t.Context())
	}
	if all, ready := fake.Stocked(); ready != 1 || all[list[1].key] != 1 || fake.made != 3 {
		t.Errorf("%v, made %d", all, fake.made)
	}
	fake.broken = ""
	pool.last = time.Time{}
	pool.step(t.Context())
	if _, ready := fake.Stocked(); ready != 2 {
		t.Errorf("%d are ready", ready)
	}
}

// A list of classes that was cut is as if there were none.
func TestClassesThatWereCut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pool", "classes.json")
	p := readClasses(file, zerolog.Nop())
	for i := range maxClasses + 3 {
		p.note(vote{class: keyedClass{poolClass{WorkingDir: "/home"}, fmt.Sprint("key-", i)}, user: fmt.Sprint("user-", i)})
	}
	p.note(vote{class: keyedClass{poolClass{WorkingDir: "/home"}, "key-5"}, user: "another"})
	p.save(zerolog.Nop())
	whole, err := os.ReadFile(file)
	if err != nil || len(p.list()) != maxClasses || p.list()[0].key != "key-5" {
		t.Fatalf("%v, %v", p.list(), err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(file, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got := len(readClasses(file, zerolog.Nop()).list()); got != 0 && n < len(whole) || got != maxClasses && n == len(whole) {
			t.Fatalf("of %d bytes: %d classes", n, got)
		}
	}
}

func restrictions(denied ...string) plan.Restrictions {
	return plan.Restrictions{DenyRead: denied}
}

// Persistent sandboxes are of classes of their own, by their size, by whether they have root, and by whether they have a network,
// and all of it. What was kept for one is what the next one's plan asks for.
func TestPoolOfSandboxesThatLast(t *testing.T) {
	s, pool, fake := newPool(t, 1, 7)
	kinds := []plan.Persistent{{NoNetwork: true}, {NoNetwork: true, CPUs: 0.5}, {NoNetwork: true, Root: true}, {Allow: []string{"a.example"}}, {Allow: []string{"*"}}}
	come := func(n int) {
		for i, kind := range kinds {
			id := fmt.Sprintf("box-%d-%d", n, i)
			if _, _, err := s.Put(id, Registration{UserID: id, Network: !kind.NoNetwork}); err != nil {
				t.Fatal(err)
			}
			kind.Env = []map[string]string{{"OF": id}} // which is no part of its container
			spec, err := planPersistent(t, s, id, kind)
			if err != nil || spec.Persistent != id {
				t.Fatalf("%+v, %v", spec, err)
			}
			waited, is := fake.specs[fake.bound[id]]
			if is != (n > 0) {
				t.Errorf("%s: from the pool %v", id, is)
			}
			if !is {
				continue
			}
			waited.User, waited.Persistent, waited.SpoolDir, waited.Egress = spec.User, spec.Persistent, spec.SpoolDir, spec.Egress
			waited.Mounts[0].Source = spec.Mounts[0].Source
			if waited.Fingerprint() != spec.Fingerprint() {
				t.Errorf("what waited: %+v\nwhat is asked for: %+v", waited, spec)
			}
		}
	}
	come(0)
	pool.fillNow(t)
	if all, ready := fake.Stocked(); len(all) != 5 || ready != 5 {
		t.Fatalf("%v", all)
	}
	come(1)
	if got := pool.Stats(); got.Asked[poolHit] != 5 || got.Asked[poolEmpty] != 5 {
		t.Errorf("%+v", got)
	}
	// One that cannot be started is not tried again and again while others wait. One for which there is only no room stays.
	before := len(pool.classes.list())
	fake.err = fmt.Errorf("cannot fill the pool: %w", &quota.Exceeded{})
	pool.last = time.Time{}
	pool.step(t.Context())
	if after := len(pool.classes.list()); after != before {
		t.Errorf("full: %d classes of %d", after, before)
	}
	fake.err = errors.New("no such program")
	pool.last = time.Time{}
	pool.step(t.Context())
	if after := len(pool.classes.list()); after != before-1 {
		t.Errorf("%d classes of %d", after, before)
	}
}

// What waits for persistent sandboxes goes when its image becomes another one, or none are made of it any more, and the next
// of that image is there before anybody asks. While Docker does not say, all stays.
func TestPoolOfAnImageThatChanges(t *testing.T) {
	s, pool, fake := newPool(t, 1, 7)
	image, fault := "sha256:bb", error(nil)
	platform := plantest.Platform(t)
	platform.FindOther = func(context.Context, string) (images.Image, error) { return images.Image{ID: image}, fault }
	pool.planner.Platforms().Use(platform)
	kind := plan.Persistent{Image: "theirs", NoNetwork: true}
	come := func(id string) {
		t.Helper()
		if _, _, err := s.Put(id, Registration{UserID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := planPersistent(t, s, id, kind); err != nil {
			t.Fatal(err)
		}
	}
	waits := func() (of []string) {
		for _, list := range fake.waits {
			for _, spec := range list {
				of = append(of, spec.Platform.ImageID)
			}
		}
		return of
	}
	changed := func() {
		pool.Review()
		pool.fillNow(t)
	}
	come("first")
	pool.fillNow(t)
	if got := fmt.Sprint(waits()); got != "[sha256:bb]" {
		t.Fatal(got)
	}
	image = "sha256:cc"
	changed()
	if got := fmt.Sprint(waits()); got != "[sha256:cc]" {
		t.Errorf("of the image before: %s", got)
	}
	if come("second"); fake.bound["second"] == "" {
		t.Error("none of the new image waits")
	}
	pool.fillNow(t)
	fault = errors.New("Docker is away")
	changed()
	if got := fmt.Sprint(waits()); got != "[sha256:cc]" {
		t.Errorf("while Docker is away: %s", got)
	}
	fault = fmt.Errorf("gone: %w", cerrdefs.ErrFailedPrecondition)
	changed()
	if got := waits(); len(got) != 0 || len(pool.classes.list()) != 0 {
		t.Errorf("of an image that is gone: %s", got)
	}
	fault = nil
	come("third")
	pool.fillNow(t)
	pool.Use(PoolConfig{Size: 1, Max: 7, Persistent: []plan.Persistent{{}}})
	pool.fillNow(t)
	if got := waits(); len(got) != 0 {
		t.Errorf("of no template: %s", got)
	}
	if come("fourth"); len(pool.classes.list()) != 0 {
		t.Error("what is of no template is kept for")
	}
}

// A token that has had a container of a kind leaves the last one to others that come for that kind, also where its calls come
// at once, and calls without an end do not keep the pool from being filled.
func TestPoolIsSharedByTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, pool, fake := newPool(t, 2, 7)
		n := 0
		come := func(token string) (hit bool) {
			t.Helper()
			n++
			id := fmt.Sprint("box-", n)
			scoped := s.Scoped(ids.Everyone(), quota.Token{Name: token})
			if _, _, err := scoped.Put(id, Registration{UserID: id}); err != nil {
				t.Fatal(err)
			}
			if _, err := planPersistent(t, scoped, id, plan.Persistent{NoNetwork: true}); err != nil {
				t.Fatal(err)
			}
			return fake.bound[id] != ""
		}
		come("greedy")
		pool.fillNow(t)
		for _, want := range []bool{true, true, false} {
			if come("greedy") != want {
				t.Errorf("who is alone has not all that waits, and no more: want %t", want)
			}
		}
		come("rare")
		pool.fillNow(t)
		for round := range 30 { // each sooner than fillAfter
			for range 20 {
				come("greedy")
				pool.step(t.Context())
				waittest.Pass(fillAfter / 2)
			}
			if round%10 == 9 && !come("rare") {
				t.Fatalf("round %d: nothing waits for another token: %+v", round, pool.Stats())
			}
		}
		if got := pool.Stats(); got.Asked[poolHit] < 20 {
			t.Errorf("hardly anybody gets anything: %+v", got)
		}
		waittest.Pass(keptFor + time.Second)
		pool.fillNow(t)
		for i, token := range []string{"greedy", "greedy", "rare"} {
			if want := i != 1; come(token) != want {
				t.Errorf("a while later: %s has one: %t", token, !want)
			}
		}
		waittest.Pass(keptFor + time.Second)
		pool.fillNow(t)
		begins, has := make(chan struct{}), make(chan bool)
		fake.before = func() { <-begins }
		go func() { has <- come("greedy") }()
		synctest.Wait()
		fake.before = nil
		second := come("greedy")
		close(begins)
		if first := <-has; first == second || !come("rare") {
			t.Errorf("of two calls at once the token has one: %t and %t; the other one is not left", first, second)
		}
	})
}
