package launch_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

func valid() launch.Launch {
	return launch.Launch{Version: launch.Version, Command: launch.Command{Process: specs.Process{Args: []string{"a", "é\n"}, Cwd: "/home", Env: []string{"A=\x01"}}}, Log: launch.Log{MaxBytes: 1 << 20, Files: 3}, Ready: &launch.Ready{Port: 80, IntervalMs: 1, TimeoutMs: 2}}
}

func TestALaunchRoundTrips(t *testing.T) {
	data, err := json.Marshal(valid())
	if err != nil {
		t.Fatal(err)
	}
	got, err := launch.Parse(data)
	if diff := cmp.Diff(valid(), got); diff != "" || err != nil {
		t.Errorf("%v, sent (-), got (+):\n%s", err, diff)
	}
}

func TestBadLaunchesAreRefused(t *testing.T) {
	for want, change := range map[string]func(*launch.Launch){
		"version 3":     func(l *launch.Launch) { l.Version = 3 },
		"args or shell": func(l *launch.Launch) { l.Args = nil },
		"either":        func(l *launch.Launch) { l.Shell = "x" },
		"login":         func(l *launch.Launch) { l.Login = true },
		"not absolute":  func(l *launch.Launch) { l.Cwd = "home" },
		"fewer than":    func(l *launch.Launch) { l.Log.MaxBytes = launch.MinLogBytes - 1 },
		"either ready":  func(l *launch.Launch) { l.Ready = &launch.Ready{IntervalMs: 1, TimeoutMs: 1} },
		"is no port":    func(l *launch.Launch) { l.Ready = &launch.Ready{Port: 1 << 16, IntervalMs: 1, TimeoutMs: 1} },
		"not both":      func(l *launch.Launch) { l.Ready = &launch.Ready{Port: 1, TimeoutMs: 1} },
		"-1 older":      func(l *launch.Launch) { l.Log.Files = -1 },
		"101 older":     func(l *launch.Launch) { l.Log.Files = launch.MaxLogFiles + 1 },
		"more than 146": func(l *launch.Launch) { l.Args = []string{strings.Repeat("x", launch.MaxSize)} },
	} {
		l := valid()
		change(&l)
		data, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := launch.Parse(data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, text := range []string{"", "{}", "null", "[]", `{"version":2,"unknown":0}`} {
		if _, err := launch.Parse([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	data, _ := json.Marshal(valid())
	if _, err := launch.Parse(append(data, "{}"...)); err == nil {
		t.Error("a second object was taken")
	}
}

func TestAStateRoundTrips(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, s := range []launch.State{
		{Version: launch.Version, StartedAt: at, PID: 7},
		{Version: launch.Version, StartedAt: at, PID: 7, Ready: &launch.Readiness{OK: true, Since: at}},
		{Version: launch.Version, StartedAt: at, PID: 7, EndedAt: at, ExitCode: 255, Lost: 1 << 40},
		{Version: launch.Version, StartedAt: at, PID: 7, EndedAt: at, Signal: "SIGTERM"},
		{Version: launch.Version, EndedAt: at, ExitCode: 127, Fault: "no-such: command not found"},
	} {
		got, err := launch.ParseState(s.Encode())
		if diff := cmp.Diff(s, got); diff != "" || err != nil {
			t.Errorf("%v, sent (-), got (+):\n%s", err, diff)
		}
	}
	long := launch.State{StartedAt: at, PID: 1 << 30, EndedAt: at, ExitCode: 255, Signal: "SIGRTMIN", Fault: strings.Repeat("\x01", 1<<20), Lost: 1 << 62, Ready: &launch.Readiness{Since: at, Message: strings.Repeat("\x01", 1<<20)}}
	if data := long.Encode(); len(data) > launch.MaxStateSize {
		t.Errorf("a state of %d bytes", len(data))
	}
}

func TestAStateThatWasCut(t *testing.T) {
	whole := launch.State{Version: launch.Version, StartedAt: time.Now(), PID: 7, ExitCode: 1, Signal: "SIGTERM"}.Encode()
	for length := range len(bytes.TrimSpace(whole)) {
		if got, err := launch.ParseState(whole[:length]); err == nil {
			t.Errorf("cut to %d bytes: %+v", length, got)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"exitCode":0}`))
	f.Add([]byte(`{"version":2,"exitCode":3,"signal":"SIGTERM","new":[1]}`))
	f.Add([]byte(`{"version":1,"exitCode":-1}`))
	f.Add([]byte(`{"version":1,"exitCode":256}`))
	f.Add([]byte(`{"version":1,"signal":"\u001b[31m"}`))
	f.Add([]byte(`{"version":1,"lost":-1}`))
	f.Add([]byte(`{"version":1,"startedAt":"2030-01-02T03:04:05Z","fault":"\ufffd"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := launch.ParseState(data)
		if err != nil {
			return
		}
		if s.ExitCode < 0 || s.ExitCode > 255 || s.PID < 0 || s.Lost < 0 || len(s.Fault) > 1000 || strings.ContainsAny(s.Signal, "\x1b\n ") {
			t.Errorf("%q became %+v", data, s)
		}
		if len(s.Encode()) > launch.MaxStateSize {
			t.Errorf("%q became too long", data)
		}
	})
}

// A process may report anything about itself, except a time that the service could not pass on as JSON.
func TestATimeThatIsNone(t *testing.T) {
	for _, since := range []string{"9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"} {
		if _, err := launch.ParseState([]byte(`{"version":1,"exitCode":0,"ready":{"ok":true,"since":"` + since + `"}}`)); err == nil {
			t.Errorf("%s was taken", since)
		}
	}
}
