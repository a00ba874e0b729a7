package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/hints"
)

// decisionTable prints decisions as they come.
type decisionTable struct {
	out   io.Writer
	now   func() time.Time
	table table
	begun bool // the heading has been printed
}

func newDecisionTable(out io.Writer) *decisionTable {
	return decisionsIn(out, width(out), time.Now)
}

// decisionsIn returns a table of at most so many columns, for which users, names and reasons are
// cut; 0 means no limit.
func decisionsIn(out io.Writer, columns int, now func() time.Time) *decisionTable {
	return &decisionTable{out: out, now: now, table: table{
		columns: columns, widths: []int{len(time.TimeOnly), 0, 0, 0, 24, 0}, gives: 4, cut: fitEnd,
		share: func(rest int) int { return max(rest/2, rest-len(types.ReasonNotAllowed), 10) },
	}}
}

// print prints decisions, and the heading before the very first one.
func (t *decisionTable) print(list ...types.Decision) error {
	var rows [][]string
	if !t.begun {
		rows = append(rows, []string{"TIME", "USER", "VERDICT", "VIA", "NAME", "COUNT", "REASON"})
	}
	t.begun = true
	for _, d := range list {
		rows = append(rows, t.row(d))
	}
	_, err := io.WriteString(t.out, t.table.lines(rows...))
	return err
}

func (t *decisionTable) row(d types.Decision) []string {
	name, user := orDash(d.Name), orDash(d.UserID)
	if t.table.columns > 0 {
		user = fit(user, 12)
	}
	if d.Port != 0 {
		name = fmt.Sprintf("%s:%d", name, d.Port)
	}
	return []string{
		t.clock(d.Time), user, printable(string(d.Verdict)), printable(string(d.Via)), name,
		fmt.Sprint(d.Count), printable(d.Reason),
	}
}

// clock returns a time, with its day unless that is today.
func (t *decisionTable) clock(at time.Time) string {
	at = at.Local()
	if at.Format(time.DateOnly) == t.now().Local().Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format("Jan _2 15:04")
}

func orDash(name string) string {
	if name == "" {
		return "-"
	}
	return printable(name)
}

// advice is whose words tell what to do about what a command did not get, and the names that its
// call has denied itself.
type advice struct {
	door   hints.Door
	denied []string // patterns
}

// tellHints prints what else a result says, a line for each.
func tellHints(out io.Writer, r types.Result, a advice) {
	for _, h := range hints.Say(a.door, r.Hints) {
		fmt.Fprintln(out, "sandbox:", printable(h.Message))
	}
}

// tellRefusals prints what a command tried to reach and could not, a line for each name.
func tellRefusals(out io.Writer, r types.Result, a advice) {
	type told struct {
		name    string
		port    uint16
		verdict types.Verdict
		reason  string
	}
	counts, vias := map[told]uint64{}, map[told][]string{}
	var order []told
	for _, refusal := range r.Egress {
		line := told{refusal.Name, refusal.Port, refusal.Verdict, refusal.Reason}
		if counts[line] == 0 {
			order = append(order, line)
		}
		counts[line] += refusal.Count
		vias[line] = append(vias[line], string(refusal.Via))
	}
	for _, line := range order {
		name, times := "a host without a name", "once"
		if line.name != "" {
			name = printable(line.name)
		}
		if line.port != 0 {
			name = fmt.Sprintf("%s:%d", name, line.port)
		}
		if counts[line] > 1 {
			times = fmt.Sprintf("%d times", counts[line])
		}
		remedy := hints.Remedy(a.door,
			types.Refusal{Name: line.name, Verdict: line.verdict, Reason: line.reason}, a.denied)
		if remedy != "" {
			remedy = "; " + remedy
		}
		fmt.Fprintf(out, "sandbox: egress %s %s (%s, %s): %s%s\n", line.verdict, name, times,
			strings.Join(vias[line], " and "), printable(line.reason), remedy)
	}
	if r.EgressMore > 0 {
		fmt.Fprintf(out,
			"sandbox: egress refused %d more names; \"sandbox egress log\" has the latest of them\n",
			r.EgressMore)
	}
}
