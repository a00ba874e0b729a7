package dockerexec

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

func TestWritableDirs(t *testing.T) {
	one := &Container{spec: Spec{Mounts: []Mount{{Source: "/data/u"}, {Source: "/data/u/in"}, {Source: "/data/u-b"}, {Source: "/srv/read", ReadOnly: true}}}}
	two := &Container{spec: Spec{Mounts: []Mount{{Source: "/data/u/in"}, {Source: "/srv/read/out"}}}}
	if got, want := writableDirs([]*Container{one, two}), []string{"/data/u", "/data/u-b", "/srv/read/out"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// followedDirs are Mounts that note which directories are followed, and until when; what is sent is told.
type followedDirs struct {
	preparerLog
	begun, ended chan []string
	news         chan string
}

func (f *followedDirs) Follow(ctx context.Context, _ Spec, dirs []string, told func(News)) {
	f.begun <- dirs
	for {
		select {
		case host := <-f.news:
			var news News
			news.Add(host, true)
			told(news)
		case <-ctx.Done():
			f.ended <- dirs
			return
		}
	}
}

// While somebody watches in one of a user's containers, what others change is told there as others' changes. Somebody who has one
// container is not followed, and nobody is in whose containers nobody watches.
func TestChangesOfOthersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.gVisor = true
		mounts := &followedDirs{begun: make(chan []string, 10), ended: make(chan []string, 10), news: make(chan string)}
		told, watched := make(chan control.Request, 10), atomic.Bool{}
		engine.Serve(func(p enginetest.Program) {
			agenttest.Requests(p, func(r control.Request) *control.Answer {
				if r.Do == control.LookUp {
					told <- r
				}
				return &control.Answer{Renamed: &wire.Renamed{Watched: watched.Load()}}
			})
		})
		e := engine.executor()
		e.cfg.Mounts = mounts
		e.work.Go(e.relayChanges)
		defer time.Sleep(2 * time.Minute) // until all agents have ended
		defer e.Shutdown()
		start := func(user, id string) {
			t.Helper()
			spec := engine.homeSpec(user)
			spec.Persistent = id
			if _, err := e.StartPersistent(t.Context(), spec, quota.Token{}); err != nil {
				t.Fatal(err)
			}
		}
		start("alice", "s1")
		start("bob", "s3")
		watched.Store(true)
		time.Sleep(time.Minute)
		if len(mounts.begun) > 0 {
			t.Fatal("somebody with one container is followed")
		}
		start("alice", "s2")
		home := engine.homeSpec("alice").Mounts[0].Source
		if dirs := <-mounts.begun; !slices.Equal(dirs, []string{home}) {
			t.Errorf("%q are followed", dirs)
		}
		mounts.news <- home + "/x"
		for range 2 { // one has changed it, and its agent leaves that out
			if r := <-told; !r.Others || !slices.Equal(r.Paths, []string{"/home/x"}) || !slices.Equal(r.Modified, r.Paths) {
				t.Errorf("told %+v", r)
			}
		}
		watched.Store(false)
		<-mounts.ended
		time.Sleep(5 * time.Minute)
		if len(mounts.begun) > 0 {
			t.Error("it is followed although nobody watches")
		}
		watched.Store(true)
		<-mounts.begun
	})
}

// Nobody is asked whether somebody watches while no programs run that could change anything. A call that begins has it asked
// at once, and calls after one another do seldom.
func TestWhoCannotHearAnythingIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.gVisor = true
		var asked atomic.Int64
		engine.Serve(func(p enginetest.Program) {
			if p.Container.Labels[labelPersistent] == "" {
				engine.obey(p)
				return
			}
			agenttest.Requests(p, func(control.Request) *control.Answer {
				asked.Add(1)
				return &control.Answer{Renamed: &wire.Renamed{}}
			})
		})
		e := engine.executor()
		e.work.Go(e.relayChanges)
		defer time.Sleep(2 * time.Minute) // until all agents have ended
		defer e.Shutdown()
		spec := engine.homeSpec("alice")
		machine := spec
		machine.Persistent = "s1"
		if _, err := e.StartPersistent(t.Context(), machine, quota.Token{}); err != nil {
			t.Fatal(err)
		}
		expect := func(least, most int64) {
			t.Helper()
			if got := asked.Swap(0); got < least || got > most {
				t.Errorf("asked %d times, want %d to %d", got, least, most)
			}
		}
		call := func() {
			t.Helper()
			if _, err := e.joined(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
		call()
		time.Sleep(time.Second)
		expect(1, 1)
		time.Sleep(time.Hour)
		expect(0, 0)
		call()
		time.Sleep(time.Second)
		expect(1, 1)
		for range 60 {
			call()
			time.Sleep(time.Second)
		}
		expect(5, 7)
	})
}
