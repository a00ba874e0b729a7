package main

import (
	"fmt"
	"math"
	"slices"
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

// atMost and atLeast judge a time, a size or a ratio, which show formats. A value of 0 was not
// measured: nothing takes no time.
func atMost[T ~int64 | ~float64](runtime, what string, measured, target T, show func(T) string) verdict {
	return compared(runtime, what, "at most "+show(target), measured, measured <= target, show)
}

func atLeast[T ~int64 | ~float64](runtime, what string, measured, target T, show func(T) string) verdict {
	return compared(runtime, what, "at least "+show(target), measured, measured >= target, show)
}

func compared[T ~int64 | ~float64](runtime, what, target string, measured T, met bool, show func(T) string) verdict {
	if measured == 0 {
		return judge(runtime, what, target, "", 0, false)
	}
	return judge(runtime, what, target, show(measured), float64(measured), met)
}

// zero judges a number that has to be 0.
func zero(runtime, what string, n int) verdict {
	return judge(runtime, what, "0", fmt.Sprint(n), float64(n), n == 0)
}

// met reports whether every pass meets the target.
func (v verdict) met() bool {
	return len(v.passes) > 0 && !slices.ContainsFunc(v.passes, func(p judgement) bool { return !p.met })
}

func (v verdict) measured() bool {
	return len(v.passes) > 0 && !slices.ContainsFunc(v.passes, func(p judgement) bool { return p.text == "" })
}

// The verdicts. A floor is a target that is not met for a reason that is known and not the service's.
const (
	wordMet        = "met"
	wordMissed     = "**not met**"
	wordUnmeasured = "**not measured**"
	wordFloor      = "floor"
)

// cells returns the values of the passes and their spread.
func (v verdict) cells() []string {
	var cells []string
	for _, p := range v.passes {
		if p.text == "" {
			p.text = "not measured"
		}
		cells = append(cells, p.text)
	}
	return append(cells, v.spread())
}

// spread returns the difference between the passes' values as a part of their mean, or "" if there
// are not two.
func (v verdict) spread() string {
	if len(v.passes) < 2 || !v.measured() {
		return ""
	}
	low, high, sum := math.Inf(1), math.Inf(-1), 0.0
	for _, p := range v.passes {
		low, high, sum = min(low, p.value), max(high, p.value), sum+math.Abs(p.value)
	}
	if sum == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.0f %%", 100*(high-low)/(sum/float64(len(v.passes))))
}

// millis formats a duration in milliseconds, with three significant digits below 1000 ms.
func millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch size := math.Abs(ms); {
	case d == 0:
		return "—"
	case size < 1:
		return fmt.Sprintf("%.3f", ms)
	case size < 10:
		return fmt.Sprintf("%.2f", ms)
	case size < 100:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.0f", ms)
	}
}

// ms is millis with its unit.
func ms(d time.Duration) string { return millis(d) + " ms" }

func times(ratio float64) string { return fmt.Sprintf("%.2f×", ratio) }

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// megabytes formats the speed at which bytes came in a time, in MB/s.
func megabytes(bytes int64, took time.Duration) string {
	if took == 0 {
		return "—"
	}
	return fmt.Sprintf("%.0f", float64(bytes)/1e6/took.Seconds())
}
