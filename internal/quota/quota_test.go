package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// one is a bound of 1 for each resource.
var one = Bounds{1, 1, 1, 1, 1, 1, 1, 1, 1}

func by(user, token string) Account {
	return Account{User: user, Token: Token{Name: token, Some: true}}
}

func TestEachBound(t *testing.T) {
	for _, r := range Resources() {
		if r == Requests {
			continue // rate_test.go's
		}
		for _, tt := range []struct {
			scope  Scope
			limits Limits
			other  Account // who is not at the bound
			says   string
		}{
			{User, Limits{PerUser: one}, by("bob", "t"), `user "alice" has 1 `},
			{OfToken, Limits{PerToken: one}, by("alice", "u"), `token "t" has 1 `},
			{Total, Limits{Total: one}, Account{}, "the service has 1 "},
		} {
			t.Run(fmt.Sprint(r, " ", tt.scope), func(t *testing.T) {
				l := New(tt.limits)
				release, err := l.Take(by("alice", "t"), r, 1)
				if err != nil {
					t.Fatal(err)
				}
				_, err = l.Take(by("alice", "t"), r, 1)
				full, is := errors.AsType[*Exceeded](err)
				if !is || full.Scope != tt.scope || full.Resource != r || full.Retry <= 0 || !errdefs.IsResourceExhausted(err) {
					t.Fatalf("%+v", err)
				}
				if !strings.HasPrefix(err.Error(), tt.says) || !strings.Contains(err.Error(), r.String()+")") || !strings.Contains(err.Error(), "(quotas.") {
					t.Error(err)
				}
				if tt.scope != Total {
					free, err := l.Take(tt.other, r, 1)
					if err != nil {
						t.Fatalf("another: %v", err)
					}
					free()
				}
				release()
				release() // does no harm
				again, err := l.Take(by("alice", "t"), r, 1)
				if err != nil {
					t.Fatal(err)
				}
				again()
				if got := l.Stats().InUse; got != [resources]int{} || len(l.used) != 0 {
					t.Errorf("%v in use, %d remembered", got, len(l.used))
				}
			})
		}
	}
}

func TestRefusalsNameTheQuota(t *testing.T) {
	l := New(Limits{PerToken: Bounds{Commands: 2}})
	take := func(token Token, n int) error {
		give, err := l.Take(Account{User: "alice", Token: token}, Commands, n)
		if err == nil {
			give()
		}
		return err
	}
	for _, tt := range []struct {
		name  string
		token Token
		most  int // 0 for no bound
		says  string
	}{
		{"the socket", Token{}, 0, ""},
		{"for everyone", Token{Name: "engine"}, 0, ""},
		{"for everyone, with its own", Token{Name: "engine", Own: Bounds{Commands: 5}}, 5, "quotas.commands of the token in tcp.tokensFile"},
		{"for some", Token{Name: "t", Some: true}, 2, "quotas.perToken.commands"},
		{"for some, lowered", Token{Name: "t", Some: true, Own: Bounds{Commands: 1}}, 1, "quotas.commands of the token in tcp.tokensFile"},
		{"for some, not raised", Token{Name: "t", Some: true, Own: Bounds{Commands: 9}}, 2, "quotas.perToken.commands"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.most == 0 {
				if err := take(tt.token, 1000); err != nil {
					t.Error(err)
				}
				return
			}
			if err := take(tt.token, tt.most); err != nil {
				t.Error(err)
			}
			if err := take(tt.token, tt.most+1); err == nil || !strings.Contains(err.Error(), "("+tt.says+")") {
				t.Error(err)
			}
		})
	}
}

// TestTurns has one user wait forty times before another comes once.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{PerUser: Bounds{ColdStarts: 1}, Total: Bounds{ColdStarts: 1}})
		var mu sync.Mutex
		var order []string
		ask := func(user string) {
			go func() {
				done, err := l.Turn(t.Context(), Account{User: user})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				done()
			}()
			synctest.Wait()
		}
		first, err := l.Turn(t.Context(), Account{User: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			ask("alice")
		}
		ask("bob")
		ask("bob")
		ask("carol")
		if n := l.Stats().Waiting; n != 43 {
			t.Errorf("%d wait", n)
		}
		first()
		synctest.Wait()
		if got := strings.Join(order[:6], " "); len(order) != 43 || got != "alice bob carol alice bob alice" {
			t.Errorf("%d turns: %s", len(order), got)
		}
		if len(l.used) != 0 || len(l.waiting.users) != 0 || len(l.waiting.of) != 0 {
			t.Errorf("%+v", l)
		}
	})
}

// TestTurnsOfTokens has a token of forty users wait before another of one.
func TestTurnsOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: Bounds{ColdStarts: 1}})
		var mu sync.Mutex
		var order []string
		ask := func(user, token string) {
			go func() {
				done, err := l.Turn(t.Context(), by(user, token))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				done()
			}()
			synctest.Wait()
		}
		first, err := l.Turn(t.Context(), by("anne", "many"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			ask(fmt.Sprint("user-", i), "many")
		}
		ask("bob", "few")
		ask("carol", "few")
		first()
		synctest.Wait()
		if got := strings.Join(order[:5], " "); len(order) != 42 || got != "user-0 bob user-1 carol user-2" {
			t.Errorf("%d turns: %s", len(order), got)
		}
		if len(l.waiting.tokens) != 0 || len(l.waiting.by) != 0 || len(l.waiting.users) != 0 {
			t.Errorf("%+v", l.waiting)
		}
	})
}

func TestTurnsThatNobodyWaitsFor(t *testing.T) {
	l := New(Limits{Total: Bounds{ColdStarts: 1}})
	done, err := l.Turn(t.Context(), by("alice", ""))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gone")
	cancel(why)
	if _, err := l.Turn(ctx, by("bob", "")); !errors.Is(err, why) {
		t.Error(err)
	}
	done()
	if s := l.Stats(); s.Waiting != 0 || s.InUse[ColdStarts] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestATokensTurns has a token at its bound, which keeps back nobody of the same user who comes by another token.
func TestATokensTurns(t *testing.T) {
	l := New(Limits{PerToken: Bounds{ColdStarts: 1}})
	done, err := l.Turn(t.Context(), by("alice", "t"))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		if next, err := l.Turn(t.Context(), by("alice", "t")); err == nil {
			next()
		}
	}()
	for l.Stats().Waiting == 0 {
	}
	other, err := l.Turn(t.Context(), by("alice", "u"))
	if err != nil {
		t.Fatal(err)
	}
	other()
	done()
	<-waiting
}

// TestSpareTurns has two waiters that no call waits for: they come one at a time, when no other has a turn or waits for one.
func TestSpareTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{PerUser: Bounds{ColdStarts: 1}, Total: Bounds{ColdStarts: 2}})
		turns := make(chan string, 9)
		end := map[string]func(){}
		ask := func(user string, turn func() (func(), error)) {
			go func() {
				done, err := turn()
				if err != nil {
					t.Error(err)
				}
				end[user] = done
				turns <- user
			}()
			synctest.Wait()
		}
		call := func(user string) { ask(user, func() (func(), error) { return l.Turn(t.Context(), by(user, "")) }) }
		spare := func(user string, wanted <-chan struct{}) {
			ask(user, func() (func(), error) { return l.SpareTurn(t.Context(), by(user, ""), wanted) })
		}
		has := func(want string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for len(turns) > 0 {
				got += <-turns + " "
			}
			if got != want {
				t.Errorf("got turns: %q, want %q", got, want)
			}
		}
		call("alice")
		wanted := make(chan struct{})
		spare("bob", nil)
		spare("carol", wanted)
		spare("dave", nil)
		has("alice ")
		if n := l.Stats().Waiting; n != 0 {
			t.Errorf("calls wait for %d", n)
		}
		close(wanted) // a call comes for it
		has("carol ")
		call("erin")
		end["alice"]()
		has("erin ")
		end["carol"]()
		has("")
		end["erin"]()
		has("bob ")
		call("frank") // a spare turn leaves the others to calls
		has("frank ")
		end["bob"]()
		has("")
		end["frank"]()
		has("dave ")
		end["dave"]()
		if len(l.used) != 0 || len(l.spare.users) != 0 || len(l.waiting.users) != 0 {
			t.Errorf("%+v", l)
		}
	})
}

// Several spare turns are given at a time if the limits say so, but none beside a call's.
func TestSeveralSpareTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Total: Bounds{ColdStarts: 3}, SpareTurns: 2})
		var ends []func()
		ask := func(wanted <-chan struct{}) {
			go func() {
				done, err := l.SpareTurn(t.Context(), by("pool", ""), wanted)
				if err != nil {
					t.Error(err)
				}
				ends = append(ends, done)
			}()
			synctest.Wait()
		}
		for range 4 {
			ask(nil)
		}
		if len(ends) != 2 {
			t.Fatalf("%d turns", len(ends))
		}
		called, err := l.Turn(t.Context(), by("alice", ""))
		if err != nil {
			t.Fatal(err)
		}
		ends[0]()
		ends[1]()
		if synctest.Wait(); len(ends) != 2 {
			t.Errorf("%d turns beside a call's", len(ends))
		}
		called()
		if synctest.Wait(); len(ends) != 4 {
			t.Errorf("%d turns", len(ends))
		}
		ends[2]()
		ends[3]()
		if l.sparing != 0 || len(l.used) != 0 {
			t.Errorf("%+v", l)
		}
	})
}

// A waiter that gives up a spare turn gets none, even if a call has come for it.
func TestSpareTurnsThatNobodyWaitsFor(t *testing.T) {
	l := New(Limits{Total: Bounds{ColdStarts: 1}})
	done, err := l.Turn(t.Context(), by("alice", ""))
	if err != nil {
		t.Fatal(err)
	}
	wanted := make(chan struct{})
	for range 2 {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("gone")
		cancel(why)
		if _, err := l.SpareTurn(ctx, by("bob", ""), wanted); !errors.Is(err, why) {
			t.Error(err)
		}
		if wanted != nil {
			close(wanted)
			wanted = nil
		}
	}
	done()
	if len(l.used) != 0 || l.spare.length()+l.waiting.length() != 0 {
		t.Errorf("%+v", l)
	}
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{PerUser: Bounds{RequestsPerSecond: 10}, PerToken: Bounds{RequestsPerSecond: 20}})
		many := func(a Account) (n int, err error) {
			for ; n < 1000; n++ {
				if err = l.Ask(a); err != nil {
					return n, err
				}
			}
			return n, nil
		}
		if n, err := many(Account{User: "alice"}); n != 20 || !strings.Contains(err.Error(), `user "alice" has made 10 requests in a second`) {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := many(by("bob", "t")); n != 20 || !strings.Contains(err.Error(), "quotas.perUser.requestsPerSecond") {
			t.Errorf("another user: %d, %v", n, err)
		}
		if n, err := many(by("", "t")); n != 20 || !strings.Contains(err.Error(), "quotas.perToken.requestsPerSecond") {
			t.Errorf("what is left to the token: %d, %v", n, err)
		}
		if n, err := many(Account{}); n != 1000 {
			t.Errorf("the socket: %d, %v", n, err)
		}
		l.Use(Limits{PerUser: Bounds{RequestsPerSecond: 100}})
		if n, _ := many(Account{User: "alice"}); n != 200 {
			t.Errorf("with other settings: %d", n)
		}
	})
}

func TestTheForgottenOnesAreIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{PerUser: Bounds{RequestsPerSecond: 1}})
		everyone := func() {
			for i := range 2 * maxRates {
				if err := l.Ask(Account{User: fmt.Sprint(i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		everyone()
		everyone()
		if err := l.Ask(Account{User: "0"}); err == nil {
			t.Error("its rate was forgotten while it asked")
		}
		waittest.Pass(time.Minute)
		for i := range 2 * maxRates {
			if err := l.Ask(Account{User: fmt.Sprint("new", i)}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(l.rates); n > 2*maxRates {
			t.Errorf("%d rates are remembered", n)
		}
	})
}

func TestRetryAfterRoundsUp(t *testing.T) {
	for retry, want := range map[time.Duration]string{time.Millisecond: "1", time.Second: "1", 1500 * time.Millisecond: "2"} {
		if got := RetryAfter(fmt.Errorf("refused: %w", &Exceeded{Retry: retry})); got != want {
			t.Errorf("%v: %s", retry, got)
		}
	}
	if got := RetryAfter(errors.New("busy with something else")); got != "1" {
		t.Errorf("of another refusal: %s", got)
	}
}
