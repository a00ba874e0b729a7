package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVerdictOfTwoPasses(t *testing.T) {
	for _, test := range []struct {
		name        string
		first, next verdict
		word        string
		cells       []string
	}{
		{"both meet it", atMost("r", "w", 1, 2, times), atMost("r", "w", 1.5, 2, times), "met", []string{"1.00×", "1.50×", "40 %"}},
		{"one run was lucky", atMost("r", "w", 1, 2, times), atMost("r", "w", 3, 2, times), "**not met**", []string{"1.00×", "3.00×", "100 %"}},
		{"neither", atMost("r", "w", 3*time.Millisecond, time.Millisecond, ms), atMost("r", "w", 3*time.Millisecond, time.Millisecond, ms), "**not met**", []string{"3.00 ms", "3.00 ms", "0 %"}},
		{"one was not measured", atLeast("r", "w", 3, 2, times), atLeast("r", "w", 0, 2, times), "**not measured**", []string{"3.00×", "not measured", ""}},
		{"zeros", zero("r", "w", 0), zero("r", "w", 0), "met", []string{"0", "0", "0 %"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := merge([]section{{verdicts: []verdict{test.first}}, {verdicts: []verdict{test.next}}})
			if len(s.verdicts) != 1 || s.word(s.verdicts[0]) != test.word || !slices.Equal(s.verdicts[0].cells(), test.cells) {
				t.Errorf("%d verdicts, the first %q, %q", len(s.verdicts), s.word(s.verdicts[0]), s.verdicts[0].cells())
			}
		})
	}
}

// A target with a reason that is not the service's is a floor where it is missed, and met where it is met.
func TestFloors(t *testing.T) {
	s := section{title: "Cold exec"}
	for what, want := range map[string]string{"p50 of API ÷ the runtime alone": wordFloor, "another": wordMissed} {
		if got := s.word(atMost("r", what, 3.0, 2, times)); got != want {
			t.Errorf("%s: %s", what, got)
		}
		if got := s.word(atMost("r", what, 1.0, 2, times)); got != wordMet {
			t.Errorf("%s: %s", what, got)
		}
	}
}

func TestMergedCells(t *testing.T) {
	s := merge([]section{{rows: [][]string{{"runc", "2.1"}}}, {rows: [][]string{{"runc", "2.2"}}}})
	if got := strings.Join(slices.Concat(s.rows...), "|"); got != "runc|2.1 · 2.2" {
		t.Error(got)
	}
}

// TestFailedPartsMeetNoTarget: a part that failed in a pass meets no target.
func TestFailedPartsMeetNoTarget(t *testing.T) {
	whole := findings{runtimes: []runtimeFindings{{runtime: "runc"}}, failed: map[string]string{}}
	broken := findings{runtimes: whole.runtimes, failed: map[string]string{"cold": "no engine"}}
	cfg := settings{parts: []string{"cold"}}
	r := results{settings: cfg, passes: []findings{whole, broken}}
	text := report(r)
	for _, want := range []string{"0 of 1 targets are met", "**Not measured in pass 2:** no engine."} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
	if r.faults() == nil {
		t.Error("the run has no fault")
	}
}

// TestReasonsAreOfTargets: each reason belongs to an existing section and target.
func TestReasonsAreOfTargets(t *testing.T) {
	f := findings{runtimes: []runtimeFindings{{runtime: "runc"}, {runtime: "runsc"}}}
	found := map[string]bool{}
	for _, s := range (results{passes: []findings{f}}).sections() {
		for _, v := range s.verdicts {
			found[reason(s.title, v).text] = true
		}
	}
	for _, r := range reasons {
		if !found[r.text] {
			t.Errorf("no target has the reason of %q, %q", r.title, r.what)
		}
	}
}

// TestReportTables: each row of a table has as many cells as its head.
func TestReportTables(t *testing.T) {
	f := findings{runtimes: []runtimeFindings{{runtime: "runc"}, {runtime: "runsc"}}}
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

func TestReportOfAPart(t *testing.T) {
	cfg := settings{parts: []string{"rest"}}
	f := findings{settings: cfg, runtimes: []runtimeFindings{{runtime: "runsc"}}}
	text := report(results{settings: cfg, passes: []findings{f, f}})
	if strings.Contains(text, "## Warm") || !strings.Contains(text, "## Containers at rest") {
		t.Errorf("sections:\n%s", text)
	}
	for _, want := range []string{"0 of 3 targets are met", "**not measured**", "A part of the benchmarks"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
}
