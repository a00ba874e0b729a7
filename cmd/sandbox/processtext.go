package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// printProcesses prints lines of at most so many columns, for which names and commands are cut; 0
// means no limit.
func printProcesses(out io.Writer, list []types.Process, columns int, now time.Time) error {
	rows := [][]string{{"ID", "NAME", "STATUS", "UP/ENDED", "RESTARTS", "EXIT", "COMMAND"}}
	for _, p := range list {
		rows = append(rows, []string{
			printable(p.ID), orDash(p.Name), listedStatus(p), since(p, now),
			strconv.Itoa(p.RestartCount), exitText(p), commandText(p),
		})
	}
	t := table{columns: columns, widths: make([]int, 6), gives: 1, cut: fit,
		share: func(rest int) int { return max(rest/3, 8) }}
	_, err := io.WriteString(out, t.lines(rows...))
	return err
}

// since returns how long a process has run, how long ago it ended, or when it will be restarted.
func since(p types.Process, now time.Time) string {
	switch {
	case p.Runs():
		return "up " + span(now.Sub(p.LastStartedAt))
	case !p.NextRestartAt.IsZero():
		return "again in " + span(p.NextRestartAt.Sub(now))
	case !p.LastExitedAt.IsZero():
		return span(now.Sub(p.LastExitedAt)) + " ago"
	default:
		return "-"
	}
}

// listedStatus returns a process's status in a word.
func listedStatus(p types.Process) string {
	switch {
	case p.Ready == nil || p.Status != types.ProcessRunning:
		return printable(string(p.Status))
	case p.Ready.OK:
		return "ready"
	default:
		return "unready"
	}
}

// span returns a time in its largest unit.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// exitText returns how a process ended last, in a word.
func exitText(p types.Process) string {
	switch {
	case p.OOMKilled:
		return "OOM"
	case p.Signal != nil:
		return printable(*p.Signal)
	case p.ExitCode != nil:
		return strconv.Itoa(*p.ExitCode)
	case p.LastExitedAt.IsZero():
		return "-"
	default:
		return "?"
	}
}

// lastExitText returns when and how a process ended last; "" if it never has. Why is in the status
// of one that does not run.
func lastExitText(p types.Process) string {
	if p.LastExitedAt.IsZero() {
		return ""
	}
	if p.Reason = ""; p.Runs() {
		p.Reason = p.ExitReason
	}
	return clock(p.LastExitedAt) + cmp.Or(ending(p), ", nobody knows how")
}

// ending returns how a process ended last, as a text that follows a word such as "exited".
func ending(p types.Process) (text string) {
	switch {
	case p.Signal != nil:
		text = " by " + printable(*p.Signal)
	case p.ExitCode != nil:
		text = fmt.Sprintf(" with code %d", *p.ExitCode)
	}
	if p.OOMKilled {
		text += ", out of memory"
	}
	if p.Reason != "" {
		text += ": " + printable(p.Reason)
	}
	return text
}

// commandText returns what a process runs, in a printable line. Arguments that a shell would split
// are quoted.
func commandText(p types.Process) string {
	if p.Command != "" {
		return printable(p.Command)
	}
	words := make([]string, len(p.Argv))
	for i, word := range p.Argv {
		if words[i] = printable(word); word == "" ||
			strings.ContainsAny(word, " '\"\\$&|;<>()*?#~`") {
			words[i] = strconv.Quote(word)
		}
	}
	return strings.Join(words, " ")
}

// printProcess prints a line for each thing that is known about a process.
func printProcess(out io.Writer, p types.Process, now time.Time) error {
	var text strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-12s  %s\n", name, value)
		}
	}
	line("id", printable(p.ID))
	line("name", printable(p.Name))
	line("status", statusText(p, now))
	line("ready", readyText(p, now))
	for _, e := range p.Expose {
		line("exposed", exposedText(p, e))
	}
	line("notice", printable(p.Notice))
	line("keep alive", keepAliveText(p))
	line("command", commandText(p))
	line("cwd", printable(p.Cwd))
	line("home", printable(p.Home))
	line("user", printable(p.UserID)+", in sandbox "+printable(p.SandboxID))
	line("grants", joined(p.Permissions))
	line("domains", joined(p.AllowedDomains))
	line("packages", joined(p.PackageManagers))
	line("created", clock(p.CreatedAt))
	line("last start", clock(p.LastStartedAt))
	line("last exit", lastExitText(p))
	line("log", printable(p.LogPath))
	if p.LostBytes > 0 {
		line("lost", fmt.Sprintf("%d bytes of output could not be written to the log", p.LostBytes))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func statusText(p types.Process, now time.Time) string {
	text := printable(string(p.Status))
	if p.Runs() {
		if p.Status == types.ProcessPaused {
			text = "paused with its sandbox, up"
		}
		text += " for " + span(now.Sub(p.LastStartedAt))
		if p.PID != nil {
			text += fmt.Sprintf(", pid %d", *p.PID)
		}
		if p.DesiredState == types.ProcessStopped {
			text += ", being stopped"
		}
		return text
	}
	if !p.LastExitedAt.IsZero() {
		text += " " + span(now.Sub(p.LastExitedAt)) + " ago"
	}
	return text + ending(p)
}

// readyText returns whether a process is ready, why not, and how that is checked; "" if it is not checked.
func readyText(p types.Process, now time.Time) string {
	r := p.Ready
	if r == nil {
		return ""
	}
	text := "no"
	switch {
	case p.Status == types.ProcessPaused:
		text += ", it is paused"
	case !p.Runs():
		text += ", it does not run"
	case r.OK:
		text = "yes, for " + span(now.Sub(r.Since))
	case r.Message != "":
		text += ": " + printable(r.Message)
	}
	if r.Port != 0 {
		return fmt.Sprintf("%s (port %d)", text, r.Port)
	}
	return text + " (" + printable(r.Command) + ")"
}

func exposedText(p types.Process, e types.Exposed) string {
	text := fmt.Sprintf("%s leads to port %d", printable(e.Address), e.Port)
	switch {
	case e.Fault != "":
		return text + ", but not now: " + printable(e.Fault)
	case !p.Runs():
		return text + " when it runs"
	}
	return text
}

func keepAliveText(p types.Process) string {
	if !p.KeepAlive {
		return "no"
	}
	text := fmt.Sprintf("yes, %d restarts", p.RestartCount)
	if p.RestartCount == 1 {
		text = "yes, 1 restart"
	}
	if !p.NextRestartAt.IsZero() {
		text += ", the next at " + clock(p.NextRestartAt)
	}
	return text
}

func joined(words []string) string {
	printed := make([]string, len(words))
	for i, word := range words {
		printed[i] = printable(word)
	}
	return strings.Join(printed, ", ")
}

// clock returns a local time; empty for none.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}
