package console

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/pace"
)

// deadline notes the last read deadline that a connection was given.
type deadline struct {
	*httptest.ResponseRecorder
	at time.Time
}

func (d *deadline) SetReadDeadline(at time.Time) error {
	d.at = at
	return nil
}

// TestBodiesThatDoNotCome: whatever the console itself answers, the body that the request still has is bounded in time.
func TestBodiesThatDoNotCome(t *testing.T) {
	d := newDesk(t)
	for _, tt := range []struct {
		method, path, host string
		header             []string
		status             int
	}{
		{"GET", "/console", "console.example", nil, 308},
		{"GET", "/console/", "console.example", nil, 200},
		{"GET", "/console/none", "console.example", nil, 404},
		{"POST", "/console/", "console.example", nil, 405},
		{"GET", "/console/", "other.example", nil, 403},
		{"DELETE", "/console/session", "console.example", nil, 204},
		{"PUT", "/console/session", "console.example", nil, 405},
		{"POST", "/console/session", "console.example", nil, 415},
		{"POST", "/console/session", "console.example", []string{"Content-Type", "application/json"}, 400},
		{"POST", "/v1/sandboxes", "console.example", []string{keyHeader, "made up"}, 401},
		{"POST", "/v1/sandboxes", "console.example", nil, 0}, // the API bounds it itself
	} {
		// A body that is too large for a secret has not come to its end when it is refused.
		req := httptest.NewRequest(tt.method, tt.path, strings.NewReader(`"`+strings.Repeat("x", 2*maxSecret)))
		req.Host = tt.host
		for i := 0; i < len(tt.header); i += 2 {
			req.Header.Set(tt.header[i], tt.header[i+1])
		}
		d.reached = nil
		w := &deadline{ResponseRecorder: httptest.NewRecorder()}
		d.ServeHTTP(w, req)
		if tt.status == 0 {
			if d.reached == nil || !w.at.IsZero() {
				t.Errorf("%s %s: the API is reached: %t; the body has to come until %v", tt.method, tt.path, d.reached != nil, w.at)
			}
			continue
		}
		if w.Code != tt.status || w.at.IsZero() || time.Until(w.at) > pace.Delay {
			t.Errorf("%s %s: %d, want %d; the body has to come until %v", tt.method, tt.path, w.Code, tt.status, w.at)
		}
	}
}
