package pace

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
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
