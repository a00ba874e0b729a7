package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// section answers one question of the report.
type section struct {
	title string
	// how says how it was measured; head and rows have the results.
	how  string
	head []string
	rows [][]string
	// note stands below the table.
	note string
	// verdicts compare the results with the targets.
	verdicts []verdict
}

// row adds a row.
func (s *section) row(cells ...string) { s.rows = append(s.rows, cells) }

// times adds a row that ends with the number of measurements and their percentiles.
func (s *section) times(took sample, cells ...string) {
	s.row(append(cells, fmt.Sprint(len(took)), millis(took.percentile(50)), millis(took.percentile(99)))...)
}

// timesHead returns the head of a table whose rows are added by times.
func timesHead(cells ...string) []string { return append(cells, "n", "p50", "p99") }

// judge adds verdicts.
func (s *section) judge(verdicts ...verdict) { s.verdicts = append(s.verdicts, verdicts...) }

// report returns the text of RESULTS.md.
func report(r results) string {
	sections := r.sections()
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	if r.settings.quick {
		b.WriteString("**A smoke run: one pass, and the samples are too few for these numbers to mean much.**\n\n")
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
				for j := range s.verdicts {
					s.verdicts[j].passes = []judgement{{}}
				}
			}
			shown = append(shown, s)
		}
		sections = append(sections, merge(shown))
	}
	return sections
}

// merge joins the sections of all passes, which have the same rows and targets. A cell in which
// they differ has all of their values.
func merge(passes []section) section {
	all := passes[0]
	for _, next := range passes[1:] {
		for i, row := range next.rows {
			for j, cell := range row {
				if all.rows[i][j] != cell {
					all.rows[i][j] += " · " + cell
				}
			}
		}
		for i, v := range next.verdicts {
			all.verdicts[i].passes = append(all.verdicts[i].passes, v.passes...)
		}
		all.note = strings.TrimSpace(all.note + "\n\n" + next.note)
	}
	return all
}

func writeMachine(b *strings.Builder, m machine) {
	rows := [][]string{
		{"date", m.date.Format("2006-01-02 15:04 UTC")},
		{"machine", fmt.Sprintf("%d cores, %.1f GiB, %s", m.cores, float64(m.memory)/(1<<30), m.cpu)},
		{"a program (`true`), start to end", ms(m.program)},
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
	missed := map[string][][]string{} // by verdict
	var why strings.Builder
	for _, s := range sections {
		for _, v := range s.verdicts {
			all++
			word := s.word(v)
			if word == wordMet {
				met++
				continue
			}
			missed[word] = append(missed[word], slices.Concat([]string{s.title, v.runtime, v.what}, v.cells(), []string{v.target}))
			if r := reason(s.title, v); r.text != "" && !strings.Contains(why.String(), r.text) {
				fmt.Fprintf(&why, "- **%s, %s.** %s\n", s.title, v.what, r.text)
			}
		}
	}
	fmt.Fprintf(b, "**%d of %d targets are met; %d are floors.** A floor is not met here, and what is below it is not the service's.\n\n",
		met, all, len(missed[wordFloor]))
	for _, kind := range []struct{ word, head string }{{wordMissed, "Not met"}, {wordUnmeasured, "Not measured"}, {wordFloor, "Floors"}} {
		if rows := missed[kind.word]; len(rows) > 0 {
			b.WriteString(kind.head + ":\n\n")
			writeTable(b, slices.Concat([]string{"section", "runtime", "what"}, passHeads(len(rows[0])-5), []string{"target"}), rows)
		}
	}
	if met < all {
		fmt.Fprintf(b, "What is known about them:\n\n%s\n", cmp.Or(why.String(), "nothing yet.\n"))
	}
}

// word is the verdict about a target of the section.
func (s section) word(v verdict) string {
	switch {
	case v.met():
		return wordMet
	case !v.measured():
		return wordUnmeasured
	case reason(s.title, v).floor:
		return wordFloor
	default:
		return wordMissed
	}
}

// passHeads returns the headings of the columns with the values of so many passes, and of the spread.
func passHeads(passes int) (heads []string) {
	for i := range passes {
		heads = append(heads, fmt.Sprint("pass ", i+1))
	}
	return append(heads, "spread")
}

func writeSection(b *strings.Builder, s section) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n", s.title, s.how)
	writeTable(b, s.head, s.rows)
	if s.note != "" {
		fmt.Fprintf(b, "%s\n\n", s.note)
	}
	var rows [][]string
	for _, v := range s.verdicts {
		rows = append(rows, slices.Concat([]string{v.runtime, v.what}, v.cells(), []string{v.target, s.word(v)}))
	}
	if len(rows) > 0 {
		writeTable(b, slices.Concat([]string{"runtime", "what"}, passHeads(len(rows[0])-5), []string{"target", "verdict"}), rows)
	}
}

func writeTable(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}
