package persistent

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// A sandbox is there when its ready command has ended with 0, and not when it never does.
func TestTemplatesThatWait(t *testing.T) { synctest.Test(t, templatesThatWait) }

func templatesThatWait(t *testing.T) {
	l := newLabOf(t)
	var asked atomic.Int32
	var lines []string
	zeroAt := int32(3)
	l.answer = func(s *yamux.Stream, r control.Request) {
		lines = append(lines, r.Run.Args[len(r.Run.Args)-1])
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: int(asked.Add(1))})
		if r.Run.Args[3] == "is-ready" {
			code := 1
			if asked.Load() > zeroAt {
				code = 0
			}
			_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{Code: code})
		}
		_ = s.Close()
	}
	b := l.create(l.s, Create{Template: Template{Name: "web", Start: "serve", Ready: "is-ready"}})
	if want := []string{"serve", "is-ready", "is-ready", "is-ready"}; !slices.Equal(lines, want) {
		t.Errorf("%q were run, not %q", lines, want)
	}
	if _, err := l.s.Find(alice, b.ID()); err != nil {
		t.Error(err)
	}
	zeroAt = 1 << 30
	_, err := l.s.Create(t.Context(), alice, Create{Template: Template{Name: "web", Ready: "is-ready", ReadyTimeout: 300 * time.Millisecond}})
	if err == nil || !strings.Contains(err.Error(), `template "web": in 300ms its ready command ended with 1`) {
		t.Error(err)
	}
	if all := l.s.All(); len(all) != 1 {
		t.Errorf("%d are there", len(all))
	}
}
