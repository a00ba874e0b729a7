package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

func TestLogsAsJSON(t *testing.T) {
	for _, tt := range []struct {
		part process.LogPart
		want string
	}{
		{process.LogPart{}, `{"data":"","truncated":false}`},
		{process.LogPart{Data: []byte("é\r\n"), Notice: "a\xff"}, `{"data":"é\r\n","truncated":false,"notice":"a` + "\uFFFD" + `"}`},
		{process.LogPart{Data: []byte("\xff\x00")}, `{"data":"/wA=","encoding":"base64","truncated":false}`},
		{process.LogPart{Data: []byte("\x82\xac 1 €"), Truncated: true}, `{"data":" 1 €","truncated":true}`},
		{process.LogPart{Data: []byte("\x82\xacx\xff"), Truncated: true}, `{"data":"gqx4/w==","encoding":"base64","truncated":true}`},
	} {
		out := httptest.NewRecorder()
		(&server{}).answerLog(out, tt.part)
		if got := strings.TrimSpace(out.Body.String()); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.part, got, tt.want)
		}
	}
}

// jsonText is a value as it is answered.
func jsonText(t *testing.T, value any) string {
	t.Helper()
	out := httptest.NewRecorder()
	(&server{}).answer(out, http.StatusOK, value)
	return strings.TrimSpace(out.Body.String())
}

func TestLogQueriesSelectARange(t *testing.T) {
	l := newLab(t, nil)
	p := l.Start(process.Intent{Command: "seq 200"})
	for n := range 200 {
		l.Print(p, fmt.Sprintf("%d €\n", n+1))
	}
	for query, want := range map[string]struct {
		begins    string
		lines     int
		truncated bool
	}{
		"": {"101 €", 100, false}, "?lines=7": {"194 €", 7, false}, "?lines=10000&follow=false": {"1 €", 200, false},
		"?bytes=1048576": {"101 €", 100, false}, "?lines=7&bytes=12": {"€\n200 €", 2, true}, "?bytes=10": {"\n200 €", 2, true},
		"?from=start": {"1 €", 100, false}, "?from=start&lines=2&bytes=9": {"1 €", 1, true}, "?from=end&lines=7": {"194 €", 7, false},
	} {
		var got types.ProcessLog
		text := l.answered(exchange{route: "GET /v1/sandboxes/a/processes/" + p.ID + "/log" + query})
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(got.Data, want.begins) || strings.Count(got.Data, "\n") != want.lines || got.Truncated != want.truncated || got.Encoding != "" {
			t.Errorf("%q: %+v", query, got)
		}
	}
}

func TestCutLogsBeginAtACharacter(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "a": "a", "\x82\xac": "", "\x82\xaca": "a", "\x9f\x98\x80a\xe2\x82": "a\xe2\x82", "\x82\x82\x82\x82": "\x82\x82\x82\x82", "\x82\xff": "\x82\xff", "€": "€",
	} {
		if got := string(wholeBegin(process.LogPart{Data: []byte(data), Truncated: true})); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
		if got := string(wholeBegin(process.LogPart{Data: []byte(data)})); got != data {
			t.Errorf("%q, which was not cut: %q", data, got)
		}
	}
}

// TestLinesOfAFollowedLog follows to each of the ends that a process has.
func TestLinesOfAFollowedLog(t *testing.T) {
	for name, tt := range map[string]struct {
		prints string
		end    func(*lab, process.Record)
		want   string
	}{
		"exits": {"a\nb\n", func(l *lab, p process.Record) { l.End(p, process.Exit{Code: 3}) },
			`{"data":"a\nb\n"} {"end":true,"status":"exited","exitCode":3,"signal":null}`},
		"is killed": {"", func(l *lab, p process.Record) {
			if _, err := l.StopProcess(l.T.Context(), "a", p.ID, syscall.SIGKILL); err != nil {
				l.T.Error(err)
			}
		}, `{"end":true,"status":"stopped","exitCode":null,"signal":"SIGKILL"}`},
		"bytes": {"\xff\x00", func(l *lab, p process.Record) { l.End(p, process.Exit{}) },
			`{"data":"/wA=","encoding":"base64"} {"end":true,"status":"exited","exitCode":0,"signal":null}`},
	} {
		l := newLab(t, nil)
		p := l.Start(process.Intent{Command: "x"})
		l.Print(p, tt.prints)
		tt.end(l, p)
		got := l.answered(exchange{route: "GET /v1/sandboxes/a/processes/" + p.ID + "/log?follow=true"})
		if got = strings.ReplaceAll(got, "\n", " "); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A process that is removed while its log is followed has ended, and nobody knows how.
func TestFollowedProcessIsRemoved(t *testing.T) {
	l := newLab(t, nil)
	p := l.Start(process.Intent{Command: "x"})
	l.Print(p, "a")
	response, err := http.Get(l.serve().URL + "/v1/sandboxes/a/processes/" + p.ID + "/log?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	f := &followed{t: t, lines: bufio.NewReader(response.Body)}
	got := []string{f.text()}
	if err := l.RemoveProcess(t.Context(), "a", p.ID); err != nil {
		t.Fatal(err)
	}
	got = append(got, f.text())
	// Its end may be seen before it is forgotten.
	if want := `{"end":true,"exitCode":null,"signal":null}`; got[0] != `{"data":"a"}` || got[1] != want && !strings.Contains(got[1], `"signal":"SIGTERM"`) {
		t.Errorf("%q", got)
	}
	gone, err := (&server{service: l.Service}).lastOfLog(t.Context(), "a", p.ID, nil)
	if text := jsonText(t, gone[0]); err != nil || text != `{"end":true,"exitCode":null,"signal":null}` {
		t.Errorf("%s, %v", text, err)
	}
}

// TestPartsOfALog sends parts as they may come, to a fault or to the service's end.
func TestPartsOfALog(t *testing.T) {
	l := newLab(t, nil)
	p := l.Start(process.Intent{Command: "x"})
	part := func(data string) process.LogPart { return process.LogPart{Data: []byte(data)} }
	for _, tt := range []struct {
		name  string
		ends  error
		parts []process.LogPart
		want  string
	}{
		{"a character in two parts", errors.New("broken"), []process.LogPart{part("a\xe2"), part("\x82"), part("\xac"), {Notice: "cut \xff"}, part("b\xe2")},
			`{"data":"a"} {"data":"€"} {"notice":"cut ` + "\uFFFD" + `"} {"data":"b"} {"data":"4g==","encoding":"base64"} {"error":{"kind":"engine","message":"broken"}}`},
		{"a notice in a character", cerrdefs.ErrUnavailable, []process.LogPart{part("\xe2"), {Notice: "cut", Data: []byte("b")}},
			`{"data":"4g==","encoding":"base64"} {"notice":"cut"} {"data":"b"}`},
		{"cut at its begin", cerrdefs.ErrUnavailable, []process.LogPart{{Data: []byte("\x82\xaca"), Truncated: true}}, `{"data":"a"}`},
	} {
		out := httptest.NewRecorder()
		relays(l.Service, l.config(), p.ID, func(_ context.Context, each func(process.LogPart) error) error {
			for _, part := range tt.parts {
				if err := each(part); err != nil {
					return err
				}
			}
			return tt.ends
		}).ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/", nil))
		got := strings.TrimSpace(requestIDs.ReplaceAllString(out.Body.String(), ""))
		if got = strings.ReplaceAll(got, "\n", " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// relays answers with a log that comes from follow, of a process that is there.
func relays(service *sandbox.Service, cfg Config, processID string, follow func(context.Context, func(process.LogPart) error) error) http.Handler {
	m := &middleware{cfg: cfg, service: service}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		m.serve(w, req, route{pattern: "GET /log", who: forUsers, handle: func(s *server, w http.ResponseWriter, req *http.Request) error {
			return s.relayLog(w, req, follow, func(ctx context.Context, ended error) ([]any, error) {
				return s.lastOfLog(ctx, "a", processID, ended)
			})
		}})
	})
}

// TestEventsOfALog holds what a follower is sent against its schema.
func TestEventsOfALog(t *testing.T) {
	c := readContract(t)
	for _, tt := range []struct {
		event types.ProcessLogEvent
		takes bool
	}{
		{types.ProcessLogEvent{Data: "a"}, true},
		{types.ProcessLogEvent{Data: "AP8=", Encoding: types.Base64}, true},
		{types.ProcessLogEvent{Notice: "cut"}, true},
		{types.ProcessLogEvent{ProcessLogEnd: &types.ProcessLogEnd{End: true}}, true},
		{types.ProcessLogEvent{Error: &types.Error{Kind: types.Engine, Message: "x"}}, true},
		{types.ProcessLogEvent{}, false},
		{types.ProcessLogEvent{Data: "a", Notice: "cut"}, false},
		{types.ProcessLogEvent{ProcessLogEnd: &types.ProcessLogEnd{}}, false},
	} {
		text, err := json.Marshal(tt.event)
		if err != nil {
			t.Fatal(err)
		}
		if ok, why := c.takes(c.component(t, "ProcessLogEvent"), text); ok != tt.takes {
			t.Errorf("%s: %t, %v", text, ok, why)
		}
	}
}

// teller is a log whose parts come when a test sends them.
type teller struct {
	parts chan string
	over  chan error // what each follow has ended with
}

// tells makes the desk answer with such a log.
func (d *desk) tells() teller {
	log := teller{make(chan string), make(chan error, 1)}
	p := d.Start(process.Intent{Command: "x"})
	d.server.Handler = relays(d.Service, d.config(), p.ID, func(ctx context.Context, each func(process.LogPart) error) (err error) {
		defer func() { log.over <- err }()
		buffer := make([]byte, 64)
		for {
			select {
			case text := <-log.parts:
				if text == "" {
					return nil
				}
				if err := each(process.LogPart{Data: buffer[:copy(buffer, text)]}); err != nil {
					return err
				}
				clear(buffer) // a part is each's no longer
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	return log
}

const followedLog = "/log"

// text is the next line as it is.
func (f *followed) text() string {
	f.t.Helper()
	text, err := f.lines.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSuffix(text, "\n")
}

func TestFollowedLogIsSentAtOnceAndKeptAlive(t *testing.T) {
	atDesk(t, nil, func(d *desk) {
		log := d.tells()
		f, begun := d.open(followedLog), time.Now()
		log.parts <- "a"
		got := []string{f.text(), f.text(), f.text()}
		log.parts <- "b"
		got = append(got, f.text(), f.text())
		if silent := time.Since(begun); silent != 3*keepAlive {
			t.Errorf("three empty lines in %v", silent)
		}
		log.parts <- ""
		got = append(got, f.text())
		want := []string{`{"data":"a"}`, "", "", `{"data":"b"}`, "", `{"end":true,"status":"running","exitCode":null,"signal":null}`}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
		if rest, err := io.ReadAll(f.lines); err != nil || len(rest) > 0 || <-log.over != nil {
			t.Errorf("%q %v", rest, err)
		}
	})
}

// The caller goes while nothing happens, and while a line is on its way.
func TestFollowerOfALogGoes(t *testing.T) {
	for name, idle := range map[string]bool{"idle": true, "written to": false} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, nil, func(d *desk) {
				log := d.tells()
				f := d.open(followedLog)
				if !idle {
					log.parts <- "a"
				}
				synctest.Wait()
				_ = f.conn.Close()
				if err := <-log.over; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
	}
}

func TestFollowedLogEndsWithTheService(t *testing.T) {
	for name, read := range map[string]bool{"proper end": true, "nobody reads": false} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, nil, func(d *desk) {
				log := d.tells()
				f, begun := d.open(followedLog), time.Now()
				log.parts <- "a"
				synctest.Wait()
				close(d.stopping)
				if read {
					if rest, err := io.ReadAll(f.lines); err != nil || string(rest) != "{\"data\":\"a\"}\n" {
						t.Errorf("%q %v", rest, err)
					}
				}
				if err := d.server.Shutdown(d.t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-log.over; !errors.Is(err, context.Canceled) || time.Since(begun) >= 2*lastWrite {
					t.Errorf("stopped after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}
