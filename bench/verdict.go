package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// verdict is one target with the measurements of each pass.
type verdict struct {
	runtime, what, target string
	passes                []judgement
}

// judgement is one pass's measurement for a target.
type judgement struct {
	text  string  // the value as it is shown; empty if it was not measured
	value float64 // in any unit; used only to compare passes
	met   bool
}

// judge returns the verdict of one pass.
func judge(runtime, what, target, text string, value float64, met bool) verdict {
	return verdict{runtime, what, target, []judgement{{text, value, met}}}
}

// missing returns the verdict of a target that was not measured. It is not met.
func missing(runtime, what, target string) verdict {
	return judge(runtime, what, target, "", 0, false)
}

// atMost and atLeast judge a ratio.
func atMost(runtime, what string, measured, target float64) verdict {
	return judge(runtime, what, fmt.Sprintf("at most %g×", target), times(measured), measured, measured <= target)
}

func atLeast(runtime, what string, measured, target float64) verdict {
	return judge(runtime, what, fmt.Sprintf("at least %g×", target), times(measured), measured, measured >= target)
}

// below judges a time in microseconds.
func below(runtime, what string, measured, target time.Duration) verdict {
	return judge(runtime, what, fmt.Sprintf("under %d µs", target.Microseconds()), micros(measured)+" µs", float64(measured), measured < target)
}

// within judges a time in milliseconds.
func within(runtime, what string, measured, target time.Duration) verdict {
	return judge(runtime, what, fmt.Sprintf("at most %g ms", inMillis(target)), millis(measured)+" ms", float64(measured), measured <= target)
}

// sized judges a number of bytes; target states the limit in words.
func sized(runtime, what, target string, bytes, limit int64) verdict {
	return judge(runtime, what, target, mib(bytes), float64(bytes), bytes <= limit)
}

// counted judges a number that has to be 0.
func counted(runtime, what string, n int) verdict {
	return judge(runtime, what, "0", fmt.Sprint(n), float64(n), n == 0)
}

// met reports whether every pass meets the target.
func (v verdict) met() bool {
	for _, p := range v.passes {
		if !p.met {
			return false
		}
	}
	return len(v.passes) > 0
}

func (v verdict) measured() bool {
	for _, p := range v.passes {
		if p.text == "" {
			return false
		}
	}
	return len(v.passes) > 0
}

func (v verdict) word() string {
	switch {
	case v.met():
		return "met"
	case !v.measured():
		return "**not measured**"
	default:
		return "**not met**"
	}
}

// cells returns the values of the passes and their spread.
func (v verdict) cells() []string {
	var cells []string
	for _, p := range v.passes {
		text := p.text
		if text == "" {
			text = "not measured"
		}
		cells = append(cells, text)
	}
	return append(cells, v.spread())
}

// spread returns the difference between the passes' values as a part of their mean, or "" if they
// are not numbers.
func (v verdict) spread() string {
	if len(v.passes) < 2 || !v.measured() {
		return ""
	}
	low, high, sum := math.Inf(1), math.Inf(-1), 0.0
	for _, p := range v.passes {
		low, high, sum = min(low, p.value), max(high, p.value), sum+math.Abs(p.value)
	}
	if math.IsNaN(sum) {
		return ""
	}
	if sum == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.0f %%", 100*(high-low)/(sum/float64(len(v.passes))))
}

// merge joins the sections of all passes into one. A cell in which they differ has all of their
// values.
func merge(passes []section) section {
	all := passes[0]
	for i, next := range passes[1:] {
		all.rows = joined(all.rows, next.rows)
		for i := range min(len(all.more), len(next.more)) {
			all.more[i].rows = joined(all.more[i].rows, next.more[i].rows)
		}
		if next.note != all.note {
			all.note = strings.TrimSpace(all.note + "\n\n" + next.note)
		}
		all.verdicts = judged(all.verdicts, next.verdicts, i+1)
	}
	return all
}

// judged adds the verdicts of a pass to those of the passes before it. A verdict that a pass lacks
// counts as not measured.
func judged(all, next []verdict, before int) []verdict {
	for _, v := range next {
		at := slices.IndexFunc(all, func(one verdict) bool { return one.runtime == v.runtime && one.what == v.what })
		if at < 0 {
			at, all = len(all), append(all, verdict{v.runtime, v.what, v.target, make([]judgement, before)})
		}
		all[at].passes = append(all[at].passes, v.passes...)
	}
	for i := range all {
		all[i].passes = slices.Grow(all[i].passes, 1)[:before+1]
	}
	return all
}

// joined adds the values of another pass to a table's cells. Rows that only one pass has stay as
// they are.
func joined(rows, others [][]string) [][]string {
	for i, other := range others {
		if i >= len(rows) || len(other) != len(rows[i]) {
			rows = append(rows, other)
			continue
		}
		for j, cell := range other {
			if rows[i][j] != cell {
				rows[i][j] += " · " + cell
			}
		}
	}
	return rows
}
