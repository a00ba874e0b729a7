package fair

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// lab has owners who wait for their turns.
type lab struct {
	*Turns
	came []string // whose turns came, in their order
}

func (l *lab) begin(ended <-chan struct{}, owners ...string) {
	for _, name := range owners {
		go func() {
			if l.Begin(name, ended) {
				l.came = append(l.came, name)
			}
		}()
		synctest.Wait()
	}
}

// took returns whose turns came since it was called last.
func (l *lab) took() string {
	synctest.Wait()
	defer func() { l.came = nil }()
	return strings.Join(l.came, "")
}

func TestOwnersTakeTurnsHoweverManyOfEachWait(t *testing.T) {
	for name, tt := range map[string]struct {
		turns  *Turns
		owners string
		begin  string   // whose turns come at once
		ends   string   // whose turns end
		then   []string // whose turn comes with each end
	}{
		"all":          {&Turns{All: 1}, "aaaabc", "a", "aabca", []string{"a", "b", "c", "a", "a"}},
		"each":         {&Turns{Each: 1}, "aaabb", "ab", "abba", []string{"a", "b", "", "a"}},
		"both":         {&Turns{All: 2, Each: 1}, "aabc", "ab", "bca", []string{"c", "", "a"}},
		"neither":      {&Turns{}, "aab", "a", "aab", []string{"a", "b", ""}},
		"many at once": {&Turns{All: 3}, "aaaab", "aaa", "aa", []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lab{Turns: tt.turns}
				l.begin(nil, strings.Split(tt.owners, "")...)
				if got := l.took(); got != tt.begin {
					t.Fatalf("at once %q, want %q", got, tt.begin)
				}
				var then []string
				for _, owner := range strings.Split(tt.ends, "") {
					given := l.End(owner)
					next := l.took()
					then = append(then, next)
					if given != (next != "") {
						t.Errorf("the turn that %q ended was given on: %t, and %q came", owner, given, next)
					}
				}
				if !slices.Equal(then, tt.then) {
					t.Errorf("then %q, want %q", then, tt.then)
				}
				left := tt.begin + strings.Join(then, "")
				for _, owner := range strings.Split(tt.ends, "") {
					left = strings.Replace(left, owner, "", 1)
				}
				for _, owner := range strings.Split(left, "") {
					l.End(owner)
				}
				if len(l.owners) > 0 || len(l.order) > 0 || l.busy != 0 {
					t.Errorf("left are %d owners, %d who wait, %d turns", len(l.owners), len(l.order), l.busy)
				}
			})
		})
	}
}

func TestLeaversTakeNoTurn(t *testing.T) {
	for _, turns := range []*Turns{{All: 1}, {Each: 1}} {
		synctest.Test(t, func(t *testing.T) {
			l, ended := &lab{Turns: turns}, make(chan struct{})
			l.begin(nil, "a")
			l.begin(ended, "a", "a")
			l.begin(nil, "a")
			close(ended)
			if got := l.took(); got != "a" {
				t.Fatalf("turns came to %q", got)
			}
			l.End("a")
			if got := l.took(); got != "a" {
				t.Errorf("the turn came to %q, and not to the one who still waits", got)
			}
			l.End("a")
			if len(l.owners) > 0 || len(l.order) > 0 || l.busy != 0 {
				t.Errorf("left are %d owners, %d who wait, %d turns", len(l.owners), len(l.order), l.busy)
			}
		})
	}
}

// A turn that comes at the same time as the end goes on to the next one.
func TestNoTurnIsLost(t *testing.T) {
	turns := &Turns{All: 1}
	for range 1000 {
		turns.Begin("a", nil)
		ended, begun := make(chan struct{}), make(chan bool)
		go func() { begun <- turns.Begin("b", ended) }()
		go close(ended)
		turns.End("a")
		if <-begun {
			turns.End("b")
		}
		if turns.busy != 0 || len(turns.order) > 0 {
			t.Fatalf("%d turns, %d who wait", turns.busy, len(turns.order))
		}
	}
}
