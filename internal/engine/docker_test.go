package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/events"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// A failed start says what the caller can do about it, and keeps Docker's words.
func TestStartErrorsAreClassified(t *testing.T) {
	for text, want := range map[string]error{
		"failed to set up container networking: Address already in use":                                                                        ErrAddressTaken,
		"OCI runtime start failed: cannot read client sync file: EOF":                                                                          ErrRuntimeDied,
		"OCI runtime create failed: cannot connect the container: exit status 1: cannot make interface to0a010503: file exists":                ErrAddressTaken,
		"OCI runtime create failed: cannot connect the container: exit status 1: /proc/7/fd/9 is not the gateway's network namespace any more": ErrAddressTaken,
		"OCI runtime create failed: cannot connect the container: exec: runsc-linker: executable file not found":                               nil,
		"urpc method \\\"containerManager.StartRoot\\\" failed: EOF":                                                                           ErrRuntimeDied,
		"urpc method \\\"x\\\": connection reset by peer":                                                                                      ErrRuntimeDied,
		"urpc method \\\"x\\\" failed: no such file":                                                                                           nil,
		"write: broken pipe": nil,
	} {
		d := scripted(func(*http.Request) (int, string) {
			return http.StatusInternalServerError, fmt.Sprintf(`{"message":"%s"}`, text)
		}).engine(t)
		err := d.Start(t.Context(), "c")
		plain := strings.ReplaceAll(text, `\"`, `"`)
		if err == nil || !strings.Contains(err.Error(), plain) {
			t.Errorf("%s: %v", text, err)
		}
		for _, kind := range []error{ErrAddressTaken, ErrRuntimeDied} {
			if errors.Is(err, kind) != (kind == want) {
				t.Errorf("%s: is %q: %v", text, kind, errors.Is(err, kind))
			}
		}
	}
}

// Docker has two places for a container's state, and what they say together counts.
func TestStatesOfAContainer(t *testing.T) {
	for state, want := range map[string]specs.ContainerState{
		`"Status":"running","Running":true`:                 specs.StateRunning,
		`"Status":"paused","Running":true,"Paused":true`:    Paused,
		`"Status":"created"`:                                specs.StateCreated,
		`"Status":"exited"`:                                 specs.StateStopped,
		`"Status":"dead"`:                                   specs.StateStopped,
		`"Status":"removing"`:                               Removing,
		`"Status":"removing","Running":true`:                specs.StateRunning,
		`"Status":"running"`:                                specs.StateStopped,
		`"Running":true`:                                    specs.StateRunning,
		`"Status":"restarting","Restarting":true,"Pid":123`: specs.StateCreating,
	} {
		d := scripted(func(*http.Request) (int, string) {
			return http.StatusOK, `{"Id":"c","Name":"/n","Config":{},"State":{` + state + `}}`
		}).engine(t)
		c, err := d.Inspect(t.Context(), "c")
		if err != nil || c.State != want || c.Name != "n" {
			t.Errorf("%s: %+v, %v", state, c, err)
		}
		if runs := want == specs.StateRunning || want == Paused; c.Runs() != runs {
			t.Errorf("%s: runs: %v", state, c.Runs())
		}
	}
}

// What Docker leaves out of an answer is an error, not a container that has ended.
func TestAnAnswerThatIsIncomplete(t *testing.T) {
	for _, answer := range []string{`{}`, `{"Id":"c"}`, `{"Id":"c","State":{"Running":true}}`} {
		d := scripted(func(*http.Request) (int, string) { return http.StatusOK, answer }).engine(t)
		if c, err := d.Inspect(t.Context(), "c"); err == nil {
			t.Errorf("%s: %+v", answer, c)
		}
	}
}

// Of a listed volume its name counts, and what is not writable is read-only.
func TestListTellsMounts(t *testing.T) {
	const answer = `[{"Id":"c","Names":["/n"],"State":"running","Labels":{"a":"b"},"Mounts":[
		{"Type":"bind","Source":"/s","Destination":"/d","RW":true},
		{"Type":"volume","Name":"v","Source":"/var/lib/x","Destination":"/tmp","RW":false}],
		"NetworkSettings":{"Networks":{"z":{"IPAddress":"","MacAddress":""},
		"a":{"IPAddress":"10.1.0.5","MacAddress":"02:42:0a:01:00:05"}}}}]`
	query := ""
	d := scripted(func(r *http.Request) (int, string) {
		query = r.URL.Query().Get("all") + r.URL.Query().Get("filters")
		return http.StatusOK, answer
	}).engine(t)
	all, err := d.List(t.Context(), true, "a=b")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if want := `1{"label":{"a=b":true}}`; query != want {
		t.Errorf("asked for %s, not %s", query, want)
	}
	c := all[0]
	mounts := []specs.Mount{
		BindMount("/s", "/d", false),
		{Type: VolumeType, Source: "v", Destination: "/tmp", Options: []string{"ro"}},
	}
	if diff := cmp.Diff(mounts, c.Mounts); diff != "" || IsReadOnly(c.Mounts[0]) {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	got := fmt.Sprintf("%s %s %v %v", c.Name, c.State, c.Labels, c.Endpoints)
	want := "n running map[a:b] [{a 10.1.0.5 02:42:0a:01:00:05} {z invalid IP }]"
	if got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// Docker's messages about containers and images are events, others are not.
func TestWhichMessagesAreEvents(t *testing.T) {
	actor := events.Actor{ID: "c", Attributes: map[string]string{"container": "d"}}
	for _, tt := range []struct {
		kind   events.Type
		action events.Action
		want   EventKind
		of     string
	}{
		{events.ContainerEventType, events.ActionDie, Ended, "c"},
		{events.ContainerEventType, events.ActionDestroy, Removed, "c"},
		{events.ContainerEventType, events.ActionUnPause, Resumed, "c"},
		{events.ContainerEventType, events.ActionStart, 0, ""},
		{events.NetworkEventType, events.ActionDisconnect, Disconnected, "d"},
		{events.NetworkEventType, events.ActionConnect, 0, ""},
		{events.NetworkEventType, events.ActionDestroy, 0, ""},
		{events.ImageEventType, events.ActionPull, ImagesChanged, ""},
	} {
		got, is := translate(events.Message{Type: tt.kind, Action: tt.action, Actor: actor})
		if is != (tt.want != 0) || is && (got.Kind != tt.want || got.Container != tt.of) {
			t.Errorf("%s %s: %+v, %v", tt.kind, tt.action, got, is)
		}
	}
}

// A subscription ends with its error or its context, and leaves nothing behind, whether or not
// somebody takes its events.
func TestSubscriptionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const message = `{"Type":"container","Action":"die","Actor":{"ID":"c"}}`
		d := scripted(func(*http.Request) (int, string) { return 200, message + message }).engine(t)
		happened, failed := d.Events(t.Context())
		for range 2 {
			if event := <-happened; event.Kind != Ended || event.Container != "c" {
				t.Errorf("%+v", event)
			}
		}
		if err := <-failed; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, failed = d.Events(ctx)
		cancel()
		if err := <-failed; err == nil {
			t.Error("it ended without an error")
		}
	})
}

// frame is one of Docker's attach stream.
func frame(stream byte, data string) string {
	header := [8]byte{stream}
	binary.BigEndian.PutUint32(header[4:], uint32(len(data)))
	return string(header[:]) + data
}

// A stream has stdout's bytes, and the beginning of stderr aside.
func TestStdoutAndStderrOfAStream(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	flood := strings.Repeat("x", maxStderr)
	go func() {
		defer there.Close()
		for _, f := range []string{
			frame(1, "one "), frame(2, " why"), frame(1, ""), frame(2, flood), frame(1, "two"),
		} {
			_, _ = io.WriteString(there, f)
		}
	}()
	s := newStream(types.NewHijackedResponse(here, ""))
	got, err := io.ReadAll(s)
	if err != nil || string(got) != "one two" {
		t.Errorf("%q, %v", got, err)
	}
	if want := "why" + flood[:maxStderr-4]; s.Stderr() != want {
		t.Errorf("%d bytes of stderr: %.10q", len(s.Stderr()), s.Stderr())
	}
}

// What is no frame of Docker's, or half of one, ends the stream.
func TestAStreamThatIsNone(t *testing.T) {
	for _, sent := range []string{frame(7, "x"), frame(1, "x")[:5]} {
		here, there := net.Pipe()
		go func() {
			_, _ = io.WriteString(there, sent)
			_ = there.Close()
		}()
		s := newStream(types.NewHijackedResponse(here, ""))
		_ = s.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := s.Read(make([]byte, 9)); err == nil || n != 0 {
			t.Errorf("%q: %d, %v", sent, n, err)
		}
		_ = here.Close()
	}
}
