package httplog

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// unsolicited is a server that answers each request, and then says something more.
func unsolicited(t *testing.T, more string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok%s", more)
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestUnsolicitedAnswersAreOneField: their text is one field of few events, in whatever form the log is.
func TestUnsolicitedAnswersAreOneField(t *testing.T) {
	to, prefix, flags := log.Writer(), log.Prefix(), log.Flags()
	t.Cleanup(func() { log.SetOutput(to); log.SetPrefix(prefix); log.SetFlags(flags) })
	forged := "{\"level\":\"error\",\"message\":\"forged\"}\n\x1b[31m\r\n" + strings.Repeat("x", 1000)
	url := unsolicited(t, forged)
	for form, out := range map[string]func(io.Writer) io.Writer{
		"json": func(w io.Writer) io.Writer { return w },
		"text": func(w io.Writer) io.Writer { return zerolog.ConsoleWriter{Out: w, NoColor: true} },
	} {
		var got lines
		begun := time.Now()
		UseForStandard(zerolog.New(out(&got)))
		for range 5 * perPeriod {
			transport := &http.Transport{}
			answer, err := (&http.Client{Transport: transport}).Get(url)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			transport.CloseIdleConnections()
		}
		waittest.Until(t, "as many lines as may be are there", func() bool { return strings.Count(got.String(), "\n") >= perPeriod })
		events := strings.Split(strings.TrimSpace(got.String()), "\n")
		if most := perPeriod * (1 + int(time.Since(begun)/period)); len(events) > most {
			t.Errorf("%s: %d events, want at most %d", form, len(events), most)
		}
		for _, event := range events {
			var fields map[string]any
			if form == "json" && (json.Unmarshal([]byte(event), &fields) != nil || fields["message"] != "net/http says" || fields["level"] != "debug") {
				t.Errorf("%s", event)
			}
			if len(event) > 2*maxLine || strings.ContainsAny(event, "\x1b\r") {
				t.Errorf("%s: %d bytes: %q", form, len(event), event)
			}
		}
	}
}

func TestOmittedLinesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got lines
		l := New(zerolog.New(&got), "test")
		for range perPeriod + 3 {
			l.Print("a line")
		}
		l.Print("http: panic serving @: it is not left out")
		waittest.Pass(period)
		l.Print("the next period's")
		if text := got.String(); strings.Count(text, "\n") != perPeriod+2 || !strings.Contains(text, `"omitted":3,"line":"the next`) ||
			!strings.Contains(text, `{"level":"error","from":"test","line":"http: panic`) {
			t.Errorf("%s", text)
		}
	})
}
