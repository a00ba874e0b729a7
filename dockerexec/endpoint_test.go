package dockerexec

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/docker/docker/client"
	"github.com/rs/zerolog"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A container about which Docker says nothing does not delay the others that are taken over with it.
func TestReadmitDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		docker, err := client.NewClientWithOpts(client.WithHTTPClient(&http.Client{Transport: silent}), client.WithVersion("1.41"))
		if err != nil {
			t.Fatal(err)
		}
		e := New(docker, Config{Instance: "test", Log: zerolog.Nop()})
		e.readmit(t.Context(), []*container{{id: "c", spec: Spec{User: "u", Egress: Egress{Profile: "isolated"}}}})
	})
}
