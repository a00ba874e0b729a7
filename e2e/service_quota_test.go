package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// differently is a call that has a container of its own: each number is another view.
func differently(n int, command string) types.Exec {
	return types.Exec{Command: command, Restrictions: types.Restrictions{DenyRead: []string{fmt.Sprintf("/home/secret%d", n)}}}
}

// TestContainersOfOneUserAreBounded has a user vary what its calls see: each view is another container, of which
// there may be three. The one that was idle for longest makes room, none that is in use does, and another user's
// are not touched.
func TestContainersOfOneUserAreBounded(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "many")
		l.register(t, "other")
		l.run(t, "other", types.Exec{Command: "true"})
		others := l.containerOf(t, "other").ID
		most := 0
		for n := range 6 {
			l.run(t, "many", differently(n, "true"))
			most = max(most, len(l.containersOf(t, "many")))
		}
		if most != 3 {
			t.Errorf("there were %d containers at a time", most)
		}
		hold := make([]gate, 3)
		var names []string
		for n := range hold {
			hold[n] = l.hold(t, "many", differently(10+n, ""))
		}
		for _, c := range l.containersOf(t, "many") {
			names = append(names, c.ID)
		}
		_, err := l.client.Exec(t.Context(), "many", differently(20, "true"))
		busy, is := errors.AsType[*client.Error](err)
		if !is || busy.Kind != types.Busy || busy.RetryAfter <= 0 || !strings.Contains(busy.Message, `user "many" has 3 containers, all in use, which is the most (quotas.perUser.containers)`) {
			t.Errorf("a fourth that is in use: %v", err)
		}
		if out := l.run(t, "other", differently(0, "echo fine")); out.Stdout != "fine\n" || !out.Cold {
			t.Errorf("another user's: %+v", out)
		}
		for _, g := range hold {
			_ = g.say.Close()
			if err := <-g.ended; err != nil {
				t.Error(err)
			}
		}
		for _, c := range l.containersOf(t, "many") {
			if !strings.Contains(strings.Join(names, " "), c.ID) {
				t.Errorf("%v was made although all were in use", c.Names)
			}
		}
		l.run(t, "many", differently(20, "true"))
		if !slices.ContainsFunc(l.containersOf(t, "other"), func(c container.Summary) bool { return c.ID == others }) {
			t.Error("another user's container is gone")
		}
	}, "SANDBOXD_QUOTAS_PER_USER_CONTAINERS=3")
}

// hold starts a command that runs until it may end.
func (l *lab) hold(t *testing.T, user string, e types.Exec) gate {
	t.Helper()
	in, say := io.Pipe()
	g := gate{say, make(chan error, 1)}
	ready := make(chan struct{})
	e.Command = "echo ready; read line"
	go func() {
		_, err := l.client.Attach(context.Background(), user, e, client.Streams{Stdin: in, Stdout: onFirstWrite(ready)})
		g.ended <- err
	}()
	select {
	case <-ready:
	case err := <-g.ended:
		t.Fatalf("nothing is held of %s: %v", user, err)
	}
	return g
}

// TestColdStartsHaveTurns has one user ask for many containers at once, and another for one: that does not wait
// for all of them.
func TestColdStartsHaveTurns(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const many = 8
		l.register(t, "many")
		l.register(t, "other")
		order := make(chan string, many+1)
		var work sync.WaitGroup
		ended := 0 // before the other one asked
		ask := func(user string, n int) {
			work.Go(func() {
				if user == "other" {
					ended = len(order)
				}
				if _, err := l.client.Exec(t.Context(), user, differently(n, "true")); err != nil {
					t.Error(err)
				}
				order <- user
			})
		}
		for n := range many {
			ask("many", n)
		}
		// The first may have ended before the last has come.
		eventually(t, "most wait for their turn", func() bool { return l.metric(t, "sandboxd_cold_starts_waiting") >= many/2 })
		ask("other", 0)
		work.Wait()
		close(order)
		var place int
		for user := range order {
			if place++; user == "other" {
				break
			}
		}
		if place > ended+3 { // one was being made, and another may have been before it came
			t.Errorf("it came as number %d of %d, and %d had ended when it asked", place, many+1, ended)
		}
	}, "SANDBOXD_QUOTAS_TOTAL_COLD_STARTS=1")
}

// TestQuotasOfSmallThings shows that what is not a container is bounded, too, and says so.
func TestQuotasOfSmallThings(t *testing.T) {
	l := newLab(t, "runc", "SANDBOXD_QUOTAS_PER_USER_SANDBOXES=2", "SANDBOXD_QUOTAS_PER_USER_REQUESTS_PER_SECOND=1", "SANDBOXD_QUOTAS_PER_USER_CALLS=1")
	says := func(what, setting string, err error) {
		t.Helper()
		busy, is := errors.AsType[*client.Error](err)
		if !is || busy.Kind != types.Busy || busy.RetryAfter <= 0 || !strings.Contains(busy.Message, "("+setting+")") {
			t.Errorf("%s: %v", what, err)
		}
	}
	put := func(id string) error {
		_, err := l.client.Put(t.Context(), id, types.Registration{UserID: "small"})
		return err
	}
	for _, id := range []string{"one", "two"} {
		if err := put(id); err != nil {
			t.Fatal(err)
		}
	}
	says("a third sandbox", "quotas.perUser.sandboxes", put("three"))
	var err error
	for range 10 {
		if _, err = l.client.Get(t.Context(), "one"); err != nil {
			break
		}
	}
	says("requests", "quotas.perUser.requestsPerSecond", err)
	if _, err := l.client.Put(t.Context(), "another", types.Registration{UserID: "quiet"}); err != nil {
		t.Errorf("another user: %v", err)
	}
	held := l.hold(t, "another", types.Exec{})
	_, err = l.client.Get(t.Context(), "another")
	says("calls", "quotas.perUser.calls", err)
	_ = held.say.Close()
	if err := <-held.ended; err != nil {
		t.Error(err)
	}
}

// metric is the value of one that has no labels.
func (l *lab) metric(t *testing.T, name string) (value float64) {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.path("sandboxd.sock"))
	}}}
	answer, err := web.Get("http://x/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), name+" "); is {
			if value, err = strconv.ParseFloat(text, 64); err == nil {
				return value
			}
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
