package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// section answers one question of the report.
type section struct {
	title string
	// how says how it was measured.
	how string
	// head and rows are what was measured.
	head []string
	rows [][]string
	// after stands below that table.
	after string
	// verdicts hold it against the targets.
	verdicts []verdict
}

// verdict is one target.
type verdict struct {
	runtime, what, measured, target string
	met                             bool
}

// missing is a target that nothing was measured for. It is not met.
func missing(runtime, what, target string) verdict {
	return verdict{runtime: runtime, what: what, target: target}
}

func (v verdict) word() string {
	switch {
	case v.met:
		return "met"
	case v.measured == "":
		return "**not measured**"
	default:
		return "**not met**"
	}
}

// atMost and atLeast judge a ratio.
func atMost(runtime, what string, measured, target float64) verdict {
	return verdict{runtime, what, times(measured), fmt.Sprintf("at most %g×", target), measured <= target}
}

func atLeast(runtime, what string, measured, target float64) verdict {
	return verdict{runtime, what, times(measured), fmt.Sprintf("at least %g×", target), measured >= target}
}

// below judges a time in microseconds.
func below(runtime, what string, measured, target time.Duration) verdict {
	return verdict{runtime, what, micros(measured) + " µs", fmt.Sprintf("under %d µs", target.Microseconds()), measured < target}
}

// report is RESULTS.md.
func report(f findings) string {
	var sections []section
	for _, p := range parts {
		if f.settings.has(p.name) {
			sections = append(sections, p.show(f))
		}
	}
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	if f.settings.quick {
		b.WriteString("**A smoke run: the samples are too few for these numbers to mean much.**\n\n")
	}
	if len(f.settings.parts) > 0 {
		b.WriteString("**A part of the benchmarks: the other sections were not run.**\n\n")
	}
	b.WriteString("Written by `make bench`, which measures the service and `docker exec` or `docker run` side by side:\n" +
		"same engine, same image, same container, taking turns in one run; what it does with files, beside what the\n" +
		"system does with them; and what it puts into the way to the network, beside the way without that. Times are\n" +
		"in milliseconds unless a table says otherwise, MB is 10⁶ bytes and MiB is 2²⁰. Percentiles are by nearest rank.\n\n")
	writeMachine(&b, f.machine)
	writeSummary(&b, sections)
	for _, s := range sections {
		writeSection(&b, s)
	}
	b.WriteString(why)
	return strings.TrimSpace(b.String()) + "\n"
}

func writeMachine(b *strings.Builder, m machine) {
	rows := [][]string{
		{"date", m.date.Format("2006-01-02 15:04 UTC")},
		{"machine", fmt.Sprintf("%d cores, %.1f GiB, %s", m.cores, float64(m.memory)/(1<<30), m.cpu)},
		{"system", m.system + ", kernel " + m.kernel},
		{"engine", "Docker " + m.engine},
		{"runtimes", strings.Join(m.runtimes, ", ")},
	}
	if m.image != "" { // a service has run
		rows = append(rows, []string{"image", imageRef + ", version " + m.image})
	}
	writeTable(b, []string{"", ""}, rows)
}

func writeSummary(b *strings.Builder, sections []section) {
	all, met := 0, 0
	var missed [][]string
	for _, s := range sections {
		for _, v := range s.verdicts {
			all++
			if v.met {
				met++
				continue
			}
			missed = append(missed, []string{s.title, v.runtime, v.what, cmp.Or(v.measured, "not measured"), v.target})
		}
	}
	fmt.Fprintf(b, "**%d of %d targets are met.**\n\n", met, all)
	if len(missed) > 0 {
		b.WriteString("Not met:\n\n")
		writeTable(b, []string{"question", "runtime", "what", "measured", "target"}, missed)
	}
}

func writeSection(b *strings.Builder, s section) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n", s.title, s.how)
	writeTable(b, s.head, s.rows)
	if s.after != "" {
		fmt.Fprintf(b, "%s\n\n", s.after)
	}
	var rows [][]string
	for _, v := range s.verdicts {
		rows = append(rows, []string{v.runtime, v.what, v.measured, v.target, v.word()})
	}
	if len(rows) > 0 {
		writeTable(b, []string{"runtime", "what", "measured", "target", "verdict"}, rows)
	}
}

func writeTable(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}

// millis has three digits that count, as far as they are before the point or near it.
func millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case d == 0:
		return "—"
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	default:
		return fmt.Sprintf("%.0f", ms)
	}
}

// micros is for what is far below a millisecond.
func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond)) }

func times(ratio float64) string { return fmt.Sprintf("%.2f×", ratio) }

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

func megabytes(perSecond float64) string { return fmt.Sprintf("%.0f", perSecond/1e6) }

// percentiles is a row's end: n, p50, p95, p99.
func percentiles(s sample) []string { return percentilesIn(s, millis) }

func percentilesIn(s sample, unit func(time.Duration) string) []string {
	return []string{fmt.Sprint(len(s)), unit(s.percentile(50)), unit(s.percentile(95)), unit(s.percentile(99))}
}
