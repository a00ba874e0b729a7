package api

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

func TestLogsAsJSON(t *testing.T) {
	for _, tt := range []struct {
		query string
		part  sandbox.LogPart
		asks  sandbox.LogQuery
		want  string
	}{
		{"", sandbox.LogPart{}, sandbox.LogQuery{}, `{"data":"","truncated":false}`},
		{"?lines=7&bytes=9", sandbox.LogPart{Data: []byte("é\r\n"), Notice: "a\xff"}, sandbox.LogQuery{Lines: 7, Bytes: 9}, `{"data":"é\r\n","truncated":false,"notice":"a` + "\uFFFD" + `"}`},
		{"?lines=10000", sandbox.LogPart{Data: []byte("\xff\x00")}, sandbox.LogQuery{Lines: 10000}, `{"data":"/wA=","encoding":"base64","truncated":false}`},
		{"?bytes=1048576", sandbox.LogPart{Data: []byte("\x82\xac 1 €"), Truncated: true}, sandbox.LogQuery{Bytes: 1 << 20}, `{"data":" 1 €","truncated":true}`},
		{"?follow=false", sandbox.LogPart{Data: []byte("\x82\xacx\xff"), Truncated: true}, sandbox.LogQuery{}, `{"data":"gqx4/w==","encoding":"base64","truncated":true}`},
	} {
		service := &fakeService{fakeProcesses: fakeProcesses{readLog: func(q sandbox.LogQuery) (sandbox.LogPart, error) {
			if q != tt.asks {
				t.Errorf("%q asks for %+v", tt.query, q)
			}
			return tt.part, nil
		}}}
		if got := answered(t, service, exchange{route: "GET /v1/sandboxes/a/processes/p/log" + tt.query}); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.query, got, tt.want)
		}
	}
}

func TestWholeBegins(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "a": "a", "\x82\xac": "", "\x82\xaca": "a", "\x9f\x98\x80a\xe2\x82": "a\xe2\x82", "\x82\x82\x82\x82": "\x82\x82\x82\x82", "\x82\xff": "\x82\xff", "€": "€",
	} {
		if got := string(wholeBegin(sandbox.LogPart{Data: []byte(data), Truncated: true})); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
		if got := string(wholeBegin(sandbox.LogPart{Data: []byte(data)})); got != data {
			t.Errorf("%q, which was not cut: %q", data, got)
		}
	}
}

func TestLinesOfAFollowedLog(t *testing.T) {
	code := 3
	exited := killed()
	exited.Signal, exited.ExitCode, exited.Status = "", &code, process.Exited
	part := func(data string) sandbox.LogPart { return sandbox.LogPart{Data: []byte(data)} }
	gone := 0
	for _, tt := range []struct {
		name    string
		service fakeService
		want    string
	}{
		{"exits", logs(nil, has(exited), part("a\n"), part("b\n")), `{"data":"a\n"} {"data":"b\n"} {"end":true,"status":"exited","exitCode":3,"signal":null}`},
		{"is killed", logs(nil, has(killed())), `{"end":true,"status":"stopped","exitCode":null,"signal":"SIGKILL"}`},
		{"is removed", logs(nil, func(string) (process.Record, error) {
			if gone++; gone > 1 {
				return process.Record{}, cerrdefs.ErrNotFound
			}
			return web(), nil
		}), `{"end":true,"exitCode":null,"signal":null}`},
		{"bytes", logs(nil, has(exited), part("\xff\x00")), `{"data":"/wA=","encoding":"base64"} {"end":true,"status":"exited","exitCode":3,"signal":null}`},
		{"a character in two parts", logs(errors.New("broken"), has(web()), part("a\xe2"), part("\x82"), part("\xac"), sandbox.LogPart{Notice: "cut \xff"}, part("b\xe2")),
			`{"data":"a"} {"data":"€"} {"notice":"cut ` + "\uFFFD" + `"} {"data":"b"} {"data":"4g==","encoding":"base64"} {"error":{"kind":"engine","message":"broken"}}`},
		{"a notice in a character", logs(cerrdefs.ErrUnavailable, has(web()), part("\xe2"), sandbox.LogPart{Notice: "cut", Data: []byte("b")}),
			`{"data":"4g==","encoding":"base64"} {"notice":"cut"} {"data":"b"}`},
		{"cut at its begin", logs(cerrdefs.ErrUnavailable, has(web()), sandbox.LogPart{Data: []byte("\x82\xaca"), Truncated: true}), `{"data":"a"}`},
	} {
		got := answered(t, &tt.service, exchange{route: "GET /v1/sandboxes/a/processes/p/log?follow=true"})
		if got = strings.ReplaceAll(requestIDs.ReplaceAllString(got, ""), "\n", " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
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

// tells makes the desk's processes have such a log.
func (d *desk) tells() teller {
	log := teller{make(chan string), make(chan error, 1)}
	d.service.process = has(web())
	d.service.followLog = func(ctx context.Context, _ sandbox.LogQuery, each func(sandbox.LogPart) error) (err error) {
		defer func() { log.over <- err }()
		buffer := make([]byte, 64)
		for {
			select {
			case text := <-log.parts:
				if text == "" {
					return nil
				}
				if err := each(sandbox.LogPart{Data: buffer[:copy(buffer, text)]}); err != nil {
					return err
				}
				clear(buffer) // a part is each's no longer
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return log
}

const followedLog = "/v1/sandboxes/a/processes/p/log?follow=true"

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
	atDesk(t, func(d *desk) {
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
			atDesk(t, func(d *desk) {
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
			atDesk(t, func(d *desk) {
				log := d.tells()
				f, begun := d.open(followedLog), time.Now()
				log.parts <- "a"
				synctest.Wait()
				close(d.stop)
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
