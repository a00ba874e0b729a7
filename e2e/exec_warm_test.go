package e2e

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A registration that says which call will come has that call find its container there, and no other.
func TestWarmBeforeTheCall(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		r := types.Registration{UserID: "warm", Warm: []string{"@workspace"}}
		if _, err := l.client.Put(t.Context(), "warm", r); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the container that was asked for", func() bool {
			explained, err := l.client.Explain(t.Context(), "warm", types.Explain{Permissions: workspace})
			return err == nil && explained.Warm
		})
		for _, tt := range []struct {
			grants []string
			cold   bool
		}{{workspace, false}, {nil, true}} {
			out, err := l.client.Exec(t.Context(), "warm", types.Exec{Command: "true", Permissions: tt.grants})
			if err != nil || out.Failed || out.Cold != tt.cold {
				t.Errorf("with %q: %+v, %v", tt.grants, out, err)
			}
		}
	})
}

// Tags that the call would be refused are refused before anything is there.
func TestWarmThatIsRefused(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, tag := range []string{"@network", "@write:/mnt/data", "@nothing"} {
			_, err := l.client.Put(t.Context(), "warm-refused", types.Registration{UserID: "warm-refused", Warm: []string{tag}})
			if err == nil || !strings.Contains(err.Error(), "warm: ") {
				t.Errorf("%s: %v", tag, err)
			}
		}
		if box, err := l.client.Get(t.Context(), "warm-refused"); err == nil {
			t.Errorf("registered: %+v", box)
		}
	})
}
