package pace

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A deadline of the whole answer holds for pieces that begin later, until it is taken back.
func TestAnAnswersDeadline(t *testing.T) {
	for name, taken := range map[string]bool{"in force": false, "taken back": true} {
		t.Run(name, func(t *testing.T) {
			wrote := make(chan error, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w = Answer(w, time.Minute)
				control := http.NewResponseController(w)
				err := control.SetWriteDeadline(time.Now().Add(-time.Second))
				if taken {
					err = errors.Join(err, control.SetWriteDeadline(time.Time{}))
				}
				_, wrong := w.Write(make([]byte, 2*maxPiece))
				wrote <- errors.Join(err, wrong)
			}))
			defer server.Close()
			if answer, err := http.Get(server.URL); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			if err := <-wrote; errors.Is(err, os.ErrDeadlineExceeded) == taken || taken && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// connection notes the last read deadline that it was given.
type connection struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (c *connection) SetReadDeadline(until time.Time) error {
	c.until = until
	return nil
}

// late is a body that takes as long for a Read that returns nothing but err.
type late struct {
	takes time.Duration
	err   error
}

func (l late) Read([]byte) (int, error) {
	time.Sleep(l.takes)
	return 0, l.err
}

func (late) Close() error { return nil }

// TestOnlyAWholeBodyHasNoDeadline: what the server reads of a body that has not come to its end is bounded in time.
func TestOnlyAWholeBodyHasNoDeadline(t *testing.T) {
	const limit = 10 * time.Second
	for name, tt := range map[string]struct {
		body  late
		reads int
		free  bool
	}{
		"the end":                 {late{0, io.EOF}, 1, true},
		"too large":               {late{0, errors.New("too large")}, 1, false},
		"cut short":               {late{0, io.ErrUnexpectedEOF}, 1, false},
		"all of the time is over": {late{limit, nil}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &connection{ResponseRecorder: httptest.NewRecorder()}
				body := Body(conn, tt.body, limit)
				for range tt.reads {
					began := time.Now()
					_, _ = body.Read(nil)
					if free := conn.until.IsZero(); free != tt.free || conn.until.After(began.Add(limit)) {
						t.Errorf("the connection is read until %v, from %v", conn.until, began)
					}
				}
			})
		})
	}
}
