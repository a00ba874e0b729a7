package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// decisionTable prints decisions as they come, in columns that widen with what is in them.
type decisionTable struct {
	out     io.Writer
	columns int // of the terminal; 0 for what is none
	now     func() time.Time
	widths  []int // of all columns but the last; nil before the heading
}

// decisionRow is the cells of a line.
type decisionRow [7]string

var decisionHeading = decisionRow{"TIME", "USER", "VERDICT", "VIA", "NAME", "COUNT", "REASON"}

// The columns that give way on a terminal.
const (
	userColumn   = 1
	nameColumn   = 4
	reasonColumn = 6
)

func newDecisionTable(out io.Writer) *decisionTable {
	return &decisionTable{out: out, columns: width(out), now: time.Now}
}

// print prints decisions, and before the first of all the heading.
func (t *decisionTable) print(list ...types.Decision) error {
	var rows []decisionRow
	if t.widths == nil {
		t.widths = []int{len(time.TimeOnly), 0, 0, 0, 24, 0}
		rows = append(rows, decisionHeading)
	}
	for _, d := range list {
		rows = append(rows, t.row(d))
	}
	for _, row := range rows {
		for i := range t.widths {
			t.widths[i] = max(t.widths[i], len([]rune(row[i])))
		}
	}
	user, name, reason := t.room()
	var text strings.Builder
	for _, row := range rows {
		row[userColumn], row[nameColumn] = fit(row[userColumn], user), fitEnd(row[nameColumn], name)
		for i, widest := range t.widths {
			switch i {
			case userColumn:
				widest = min(widest, user)
			case nameColumn:
				widest = min(widest, name)
			}
			fmt.Fprintf(&text, "%-*s  ", widest, row[i])
		}
		text.WriteString(fit(row[reasonColumn], reason) + "\n")
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}

// room is how much of a user, a name and a reason there is room for.
func (t *decisionTable) room() (user, name, reason int) {
	if t.columns == 0 {
		return math.MaxInt, math.MaxInt, 0
	}
	user = min(t.widths[userColumn], 12)
	rest := t.columns - user - 2*len(t.widths)
	for i, widest := range t.widths {
		if i != userColumn && i != nameColumn {
			rest -= widest
		}
	}
	name = min(t.widths[nameColumn], max(rest/2, rest-len(types.ReasonNotAllowed), 10))
	return user, name, max(rest-name, 10)
}

func (t *decisionTable) row(d types.Decision) decisionRow {
	name := orDash(d.Name)
	if d.Port != 0 {
		name = fmt.Sprintf("%s:%d", name, d.Port)
	}
	return decisionRow{
		t.clock(d.Time), orDash(d.UserID), printable(string(d.Verdict)), printable(string(d.Via)), name, fmt.Sprint(d.Count), printable(d.Reason),
	}
}

// clock is a time of this day, or a day with a time.
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

// advice is what to say about a name that was not allowed: how it is allowed, or, for one that the call has
// denied to itself, by what that was.
type advice struct {
	allow  string
	denied []string // patterns
	denies string
}

// tellRefusals says what a command wanted to reach and did not, a line for each name.
func tellRefusals(out io.Writer, r types.Result, a advice) {
	type told struct{ name, verdict, reason string }
	counts, vias := map[told]uint64{}, map[told][]string{}
	var order []told
	for _, refusal := range r.Egress {
		line := told{refusal.Name, string(refusal.Verdict), refusal.Reason}
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
		if counts[line] > 1 {
			times = fmt.Sprintf("%d times", counts[line])
		}
		fmt.Fprintf(out, "sandbox: egress %s %s (%s, %s): %s%s\n", line.verdict, name, times,
			strings.Join(vias[line], " and "), printable(line.reason), a.remedy(line.name, line.verdict, line.reason))
	}
	if r.EgressMore > 0 {
		fmt.Fprintf(out, "sandbox: egress refused %d names more; \"sandbox egress log\" has the latest of them\n", r.EgressMore)
	}
}

// remedy is what to do about a refusal, if there is something. The name comes from the command: one that
// is more than a name, such as a wildcard, must not become advice to be pasted.
func (a advice) remedy(name, verdict, reason string) string {
	if verdict != string(types.VerdictDenied) || reason != types.ReasonNotAllowed || strings.Contains(name, "*") {
		return ""
	}
	if domain, err := policy.ParseDomain(name); err != nil || domain.String() != name {
		return ""
	}
	if denied, err := policy.ParseDenied(a.denied); err == nil && denied.Allows(name) {
		return "; " + a.denies + " takes it away"
	}
	return "; " + a.allow + " " + name
}
