package sandbox_test

import (
	"context"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// BenchmarkExec is what a warm call costs the facade, of which events are told, by how much its command prints.
func BenchmarkExec(b *testing.B) {
	for name, printed := range map[string]int{"silent": 0, "line": 60, "much": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			data := make([]byte, printed)
			s := sandboxtest.New(b, sandboxtest.Options{
				Executor: sandboxtest.Executor{RunFunc: func(_ context.Context, _ dockerexec.Spec, _ warm.Command, out session.Output) (warm.Result, error) {
					if printed == 0 {
						return warm.Result{}, nil
					}
					return warm.Result{}, out(session.Stdout, data)
				}},
				Config: func(cfg *sandbox.Config) { cfg.Events = events.New() },
			})
			if _, _, err := s.Put("agent", sandbox.Registration{UserID: "alice"}); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Exec(b.Context(), "agent", sandbox.Request{Command: "true"}, func(session.Stream, []byte) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
