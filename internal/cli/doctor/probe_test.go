package doctor

import (
	"context"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// fakeService runs what a test says, and keeps the ids of its sandboxes.
type fakeService struct {
	health askHealth
	exec   func(types.Exec) (types.Output, error)
	there  map[string]string // users
}

func (f *fakeService) Health(ctx context.Context) (types.Health, error) { return f.health(ctx) }

func (f *fakeService) Put(_ context.Context, id string, r types.Registration) (types.Sandbox, error) {
	f.there[id] = r.UserID
	return types.Sandbox{}, nil
}

func (f *fakeService) Exec(_ context.Context, _ string, e types.Exec) (types.Output, error) {
	return f.exec(e)
}

func (f *fakeService) Delete(_ context.Context, id string) error {
	delete(f.there, id)
	return nil
}

func exits(code int, stdout string) types.Output {
	return types.Output{Stdout: stdout, Result: types.Result{ExitCode: &code, Failed: code != 0, DurationMs: 12}}
}

func TestProbe(t *testing.T) {
	refused := exits(2, "")
	refused.Egress = []types.Refusal{{Name: denied, Verdict: "denied"}}
	slow := refused
	slow.DurationMs = 9000
	good := map[string]types.Output{"uname": exits(0, "4.19.0-gvisor\n"), denied: refused, "example.org": exits(0, "192.0.2.1 STREAM\n")}
	for _, tt := range []struct {
		name    string
		runtime string
		key     string // of what goes otherwise; empty for all good
		out     types.Output
		want    string // levels
		found   string // part of one
	}{
		{"all is well", "runsc", "", types.Output{}, "ok ok ok", "ran in 12 ms under runsc, kernel 4.19.0-gvisor"},
		{"a weaker runtime", "runc", "uname", exits(0, "6.18.0"), "warning ok ok", "share the host's kernel"},
		{"another kernel with the runtime's name", "runsc", "uname", exits(0, "6.18.0"), "fault ok ok", "not gVisor's"},
		{"no shell", "runsc", "uname", exits(127, ""), "fault ok ok", "uname -r failed"},
		{"the denied name resolves", "runsc", denied, exits(0, "192.0.2.1 STREAM"), "ok fault ok", "resolves to 192.0.2.1"},
		{"nobody denies", "runsc", denied, exits(2, ""), "ok fault ok", "did not deny it"},
		{"it is denied late", "runsc", denied, slow, "ok warning ok", "after 9000 ms"},
		{"no internet", "runsc", "example.org", exits(2, ""), "ok ok warning", "does not resolve, by 192.0.2.53"},
		{"no getent", "runsc", "example.org", exits(127, ""), "ok ok skipped", "no getent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			service := &fakeService{there: map[string]string{}, health: healthy(func(h *types.Health) { h.Runtime = tt.runtime })}
			service.exec = func(e types.Exec) (types.Output, error) {
				key := "uname"
				if e.Command == "" {
					key = e.Argv[2]
				}
				if key == tt.key {
					return tt.out, nil
				}
				return good[key], nil
			}
			p := &Probe{Service: service, Ask: answers(known), Name: "example.org", Upstreams: []string{"192.0.2.53"}}
			r := Run(t.Context(), p.Checks(), func(Finding) {})
			checkLevels(t, r, tt.want, tt.found)
			for id, user := range service.there {
				if user != probeUser || !strings.HasPrefix(id, "doctor-") {
					t.Errorf("sandbox %s of %s", id, user)
				}
			}
			if err := p.Close(t.Context()); err != nil || len(service.there) != 0 {
				t.Errorf("%v is left: %v", service.there, err)
			}
		})
	}
}

func TestProbeWithoutAService(t *testing.T) {
	service := &fakeService{health: func(context.Context) (types.Health, error) { return types.Health{}, errDown }}
	p := &Probe{Service: service, Ask: silent, Name: "example.org"}
	checkLevels(t, Run(t.Context(), p.Checks(), func(Finding) {}), "skipped skipped skipped", "does not answer")
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A call that cannot be run at all is a fault of its own, for each that wanted one.
func TestProbeOfAServiceThatRunsNothing(t *testing.T) {
	service := &fakeService{there: map[string]string{}, health: healthy(func(*types.Health) {})}
	service.exec = func(types.Exec) (types.Output, error) { return types.Output{}, errDown }
	p := &Probe{Service: service, Ask: answers(known), Name: "example.org"}
	checkLevels(t, Run(t.Context(), p.Checks(), func(Finding) {}), "fault fault fault", "cannot run a command: it is down")
}

func checkLevels(t *testing.T, r Report, want, found string) {
	t.Helper()
	var levels []string
	there := false
	for _, f := range r.Findings {
		levels = append(levels, string(f.Level))
		there = there || strings.Contains(f.Found, found)
		if bad := f.Level == Fault || f.Level == Warning; bad != (f.Remedy != "") {
			t.Errorf("%s: %s has remedy %q", f.Check, f.Level, f.Remedy)
		}
	}
	if got := strings.Join(levels, " "); got != want || !there {
		t.Errorf("%s, want %s with %q: %+v", got, want, found, r.Findings)
	}
}
