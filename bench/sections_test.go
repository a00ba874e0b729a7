package main

import (
	"strings"
	"testing"
)

func TestGrants(t *testing.T) {
	s := newService(t, &fakeExecutor{})
	found, err := s.measureGrants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.none) != 20 || len(found.workspace) != 20 || len(found.alternating) != 20 || found.cold != 0 {
		t.Errorf("%d, %d, %d calls, %d of them cold", len(found.none), len(found.workspace), len(found.alternating), found.cold)
	}
}

func TestGrantsThatNeverGetWarm(t *testing.T) {
	s := newService(t, &fakeExecutor{forgetful: true})
	if _, err := s.measureGrants(t.Context()); err == nil || !strings.Contains(err.Error(), "no container") {
		t.Errorf("measureGrants: %v", err)
	}
}

// TestReportTables: each row of a table has as many cells as its head.
func TestReportTables(t *testing.T) {
	f := findings{runtimes: []runtimeFindings{{runtime: "runc", streams: []stream{{}}}, {runtime: "runsc"}}}
	text := report(results{passes: []findings{f, f}})
	cells := 0
	for _, line := range strings.Split(text, "\n") {
		n := strings.Count(line, "|")
		if n > 0 && cells > 0 && n != cells {
			t.Errorf("%d cells, the head has %d: %s", n, cells, line)
		}
		cells = n
	}
	for _, title := range []string{"Grants", "Calls that may use the network", "DNS questions", "The guard", "Durable processes", "Warm commands", "A session of an agent's commands", "Containers at rest"} {
		if !strings.Contains(text, "\n## "+title+"\n") {
			t.Errorf("no section %q", title)
		}
	}
}
