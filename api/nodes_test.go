package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// In a cluster in which no host has a lease, health says so and what to look at; a single host has no such warning.
func TestHealthOfAClusterWithoutALease(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes Nodes
		warns bool
	}{
		"one host alone": {nil, false},
		"no lease":       {hosts{}, true},
		"one has one":    {hosts{"host-1": false}, false},
	} {
		l := newLab(t, nil)
		l.nodes = tt.nodes
		server := l.serve()
		response, err := server.Client().Get(server.URL + "/v1/health")
		if err != nil {
			t.Fatal(err)
		}
		var h types.Health
		err = json.NewDecoder(response.Body).Decode(&h)
		_ = response.Body.Close()
		if warned := strings.Contains(strings.Join(h.Warnings, "\n"), "that sandboxd fence runs on each host"); err != nil || warned != tt.warns {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}
