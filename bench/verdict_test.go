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
		{"both meet it", atMost("r", "w", 1, 2), atMost("r", "w", 1.5, 2), "met", []string{"1.00×", "1.50×", "40 %"}},
		{"one run was lucky", atMost("r", "w", 1, 2), atMost("r", "w", 3, 2), "**not met**", []string{"1.00×", "3.00×", "100 %"}},
		{"neither", below("r", "w", 3*time.Microsecond, time.Microsecond), below("r", "w", 3*time.Microsecond, time.Microsecond), "**not met**", []string{"3.0 µs", "3.0 µs", "0 %"}},
		{"one was not measured", atLeast("r", "w", 3, 2), missing("r", "w", "at least 2×"), "**not measured**", []string{"3.00×", "not measured", ""}},
		{"zeros", counted("r", "w", 0), counted("r", "w", 0), "met", []string{"0", "0", "0 %"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := merge([]section{{verdicts: []verdict{test.first}}, {verdicts: []verdict{test.next}}})
			if len(s.verdicts) != 1 || s.verdicts[0].word() != test.word || !slices.Equal(s.verdicts[0].cells(), test.cells) {
				t.Errorf("%d verdicts, the first %q, %q", len(s.verdicts), s.verdicts[0].word(), s.verdicts[0].cells())
			}
		})
	}
}

func TestMergedCells(t *testing.T) {
	s := merge([]section{{rows: [][]string{{"runc", "2.1"}}}, {rows: [][]string{{"runc", "2.2"}, {"runsc", "9"}}}})
	if got := strings.Join(slices.Concat(s.rows...), "|"); got != "runc|2.1 · 2.2|runsc|9" {
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
	f := findings{runtimes: []runtimeFindings{
		{runtime: "runc", streams: programs(1)}, {runtime: "runsc", streams: programs(1)},
	}}
	found := map[string]bool{}
	for _, s := range (results{passes: []findings{f}}).sections() {
		for _, v := range s.verdicts {
			found[reason(s.title, v)] = true
		}
	}
	for _, r := range reasons {
		if !found[r.text] {
			t.Errorf("no target has the reason of %q, %q", r.title, r.what)
		}
	}
}

func TestReady(t *testing.T) {
	ms := func(n ...int) (s sample) {
		for _, d := range n {
			s = append(s, time.Duration(d)*time.Millisecond)
		}
		return s
	}
	w := warmCommands()
	w[programTrue].floor, w[shellTrue].floor = ms(7), ms(15)
	w[shellTrue].rested, w[shellTrue].atOnce, w[bashTrue].rested = ms(4), ms(3, 14, 44), ms(16)
	if ready, is := w.ready(); !is || ready.percentile(99) != 40*time.Millisecond || ready.percentile(0) != 0 {
		t.Errorf("%v, %t", ready, is)
	}
	w[shellTrue].rested = ms(15)
	if ready, is := w.ready(); is {
		t.Errorf("a shell that takes as long as bash takes has started before: %v", ready)
	}
}
