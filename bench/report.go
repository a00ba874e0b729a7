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
	// how says how it was measured; head and rows have the results.
	how  string
	head []string
	rows [][]string
	// more are further tables, and note stands below all of them.
	more []table
	note string
	// verdicts compare the results with the targets.
	verdicts []verdict
}

// table is a further table of a section, with its explanation.
type table struct {
	how  string
	head []string
	rows [][]string
}

// report returns the text of RESULTS.md.
func report(r results) string {
	sections := r.sections()
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	if r.settings.quick {
		b.WriteString("**A smoke run: the samples are too few for these numbers to mean much.**\n\n")
	}
	if len(r.settings.parts) > 0 {
		b.WriteString("**A part of the benchmarks: the other sections were not run.**\n\n")
	}
	b.WriteString("`make bench` writes this report. It measures the service and `docker exec` or `docker run` side by side: same\n" +
		"engine, same image, same container, taking turns in one run. It also compares the way to the network through the\n" +
		"service with the way past it. Times are in milliseconds unless a table says otherwise. MB is 10⁶ bytes and MiB is\n" +
		"2²⁰. Percentiles are by nearest rank.\n\n" +
		"Everything is measured twice: all sections once, and then all again with services and containers of their own.\n" +
		"A cell with two values has the first pass's first. The spread is their difference, as a part of their mean. A\n" +
		"target is met if both passes meet it.\n\n")
	writeMachine(&b, r.machine)
	writeSummary(&b, sections)
	for _, s := range sections {
		writeSection(&b, s)
	}
	b.WriteString(why)
	return strings.TrimSpace(b.String()) + "\n"
}

// sections returns the sections that were asked for, each with the values of all passes.
func (r results) sections() (sections []section) {
	for _, p := range parts {
		if !r.settings.has(p.name) {
			continue
		}
		var shown []section
		for i, found := range r.passes {
			s := p.show(found)
			if fault := found.failed[p.name]; fault != "" {
				s.note = fmt.Sprintf("**Not measured in pass %d:** %s.", i+1, fault)
				for j, v := range s.verdicts {
					s.verdicts[j] = missing(v.runtime, v.what, v.target)
				}
			}
			shown = append(shown, s)
		}
		sections = append(sections, merge(shown))
	}
	return sections
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
	var why strings.Builder
	for _, s := range sections {
		for _, v := range s.verdicts {
			all++
			if v.met() {
				met++
				continue
			}
			missed = append(missed, append(append([]string{s.title, v.runtime, v.what}, v.cells()...), v.target))
			if text := reason(s.title, v); text != "" && !strings.Contains(why.String(), text) {
				fmt.Fprintf(&why, "- **%s, %s.** %s\n", s.title, v.what, text)
			}
		}
	}
	fmt.Fprintf(b, "**%d of %d targets are met.**\n\n", met, all)
	if len(missed) > 0 {
		b.WriteString("Not met:\n\n")
		writeTable(b, append(append([]string{"section", "runtime", "what"}, passHeads()...), "target"), missed)
		fmt.Fprintf(b, "What is known about them:\n\n%s\n", cmp.Or(why.String(), "nothing yet.\n"))
	}
}

// passHeads returns the headings of the columns with the values of the passes.
func passHeads() (heads []string) {
	for i := range passes {
		heads = append(heads, fmt.Sprint("pass ", i+1))
	}
	return append(heads, "spread")
}

func writeSection(b *strings.Builder, s section) {
	fmt.Fprintf(b, "## %s\n\n", s.title)
	for _, t := range append([]table{{s.how, s.head, s.rows}}, s.more...) {
		fmt.Fprintf(b, "%s\n\n", t.how)
		writeTable(b, t.head, t.rows)
	}
	if s.note != "" {
		fmt.Fprintf(b, "%s\n\n", s.note)
	}
	var rows [][]string
	for _, v := range s.verdicts {
		rows = append(rows, append(append([]string{v.runtime, v.what}, v.cells()...), v.target, v.word()))
	}
	if len(rows) > 0 {
		writeTable(b, append(append([]string{"runtime", "what"}, passHeads()...), "target", "verdict"), rows)
	}
}

func writeTable(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}

// millis formats a duration in milliseconds, with three significant digits from 1 to 999 ms.
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

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// micros formats a duration far below a millisecond, in microseconds.
func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%g", d.Seconds()) }

func times(ratio float64) string { return fmt.Sprintf("%.2f×", ratio) }

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

func megabytes(perSecond float64) string { return fmt.Sprintf("%.0f", perSecond/1e6) }

// percentiles returns the last cells of a row: n, p50, p95, p99.
func percentiles(s sample) []string { return percentilesIn(s, millis) }

func percentilesIn(s sample, unit func(time.Duration) string) []string {
	return []string{fmt.Sprint(len(s)), unit(s.percentile(50)), unit(s.percentile(95)), unit(s.percentile(99))}
}
