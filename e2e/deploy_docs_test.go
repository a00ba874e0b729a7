package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The commands in README.md and docs print what stands below them. A console block that cannot be run here says why,
// in a comment above it.
func TestDocs(t *testing.T) {
	beside(t)
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		commands := consoleCommands(t, page, string(text))
		if len(commands) == 0 {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			port := strings.TrimPrefix(freePort(t), "127.0.0.1:")
			l := newLab(t, "runsc", fmt.Sprintf("SANDBOXD_PROCESSES_EXPOSE_PORTS=%s-%[1]s", port))
			runConsole(t, l, commands, strings.NewReplacer(
				"/data/users", l.path("users"), "/run/daycare-sandbox/sandboxd.sock", l.path("sandboxd.sock"), "20000", port))
		})
	}
}

type consoleCommand struct {
	line         int
	text, output string
}

var (
	consoleBlock = regexp.MustCompile("(?ms)((?:^<!-- not run: [^\n]+ -->\n)?)^```console\n(.*?)^```$")
	varying      = []struct{ pattern, with string }{
		{`\d+(\.\d+)? ms`, "N ms"},
		{`"durationMs":[\d.]+`, `"durationMs":N`},
		{`"cold":(true|false)`, `"cold":C`},
		{`\((warm|cold) container\)`, "(C container)"},
		{`\d{4}-\d\d-\d\dT[\d:.]+Z`, "TIME"},
		{`"requestId":"\w+"`, `"requestId":"R"`},
		{`\bp-[a-z2-7]{12}\b`, "p-ID"},
		{`\b[0-9a-f]{12}\b`, "HASH"},
		{`\b\d+(ms|s|m)\b`, "T"},
		{`[ \t]+`, " "},
	}
)

// consoleCommands returns the commands of a page's console blocks, each with what is printed below it.
func consoleCommands(t *testing.T, page, text string) []consoleCommand {
	t.Helper()
	var commands []consoleCommand
	for _, at := range consoleBlock.FindAllStringSubmatchIndex(text, -1) {
		if at[2] != at[3] {
			continue // it says why it is not run
		}
		number := strings.Count(text[:at[4]], "\n")
		for line := range strings.Lines(text[at[4]:at[5]]) {
			number++
			last := len(commands) - 1
			command, begins := strings.CutPrefix(line, "$ ")
			more, continues := strings.CutPrefix(line, "> ")
			switch {
			case begins:
				commands = append(commands, consoleCommand{line: number, text: command})
			case last < 0:
				t.Fatalf("%s:%d: output without a command", page, number)
			case continues && commands[last].output == "":
				commands[last].text += more
			default:
				commands[last].output += line
			}
		}
	}
	return commands
}

// runConsole runs the commands in one shell, in a folder like a checkout's.
func runConsole(t *testing.T, l *lab, commands []consoleCommand, places *strings.Replacer) {
	t.Helper()
	dir := t.TempDir()
	for name, target := range map[string]string{"bin": binaries, "LICENSE": "../LICENSE"} {
		target, err := filepath.Abs(target)
		if err == nil {
			err = os.Symlink(target, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const mark = "\x1e"
	script := &strings.Builder{}
	for _, c := range commands {
		fmt.Fprintf(script, "printf '%s'; printf '%[1]s' >&2\n%s", mark, places.Replace(c.text))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = dir
	shell.Env = append(os.Environ(), "SANDBOX_SOCKET="+l.path("sandboxd.sock"))
	shell.WaitDelay = 10 * time.Second
	var stdout, stderr strings.Builder
	shell.Stdout, shell.Stderr = &stdout, &stderr
	err := shell.Run()
	if ctx.Err() != nil {
		t.Fatalf("the commands do not end: %v\n%s%s", err, &stdout, &stderr)
	}
	printed, said := strings.Split(stdout.String(), mark)[1:], strings.Split(stderr.String(), mark)[1:]
	if len(printed) != len(commands) || len(said) != len(commands) {
		t.Fatalf("%d commands were run of %d:\n%s%s", len(printed), len(commands), &stdout, &stderr)
	}
	for i, c := range commands {
		want := places.Replace(c.output)
		if !isMerged(normalConsole(want), normalConsole(printed[i]), normalConsole(said[i])) {
			t.Errorf("line %d: $ %s--- it should print\n%s--- it printed\n%s--- and to stderr\n%s", c.line, c.text, want, printed[i], said[i])
		}
	}
}

// isMerged reports whether lines are those of two streams, in any order between the streams: they reach a terminal on ways of
// their own.
func isMerged(lines, one, other []string) bool {
	ones := map[int]bool{0: true} // how many of one's may be among those before
	for n, line := range lines {
		next := map[int]bool{}
		for i := range ones {
			if i < len(one) && one[i] == line {
				next[i+1] = true
			}
			if n-i < len(other) && other[n-i] == line {
				next[i] = true
			}
		}
		ones = next
	}
	return ones[len(one)] && len(lines) == len(one)+len(other)
}

// normalConsole returns the lines of a text, without what differs from run to run.
func normalConsole(text string) []string {
	for _, v := range varying {
		text = regexp.MustCompile(v.pattern).ReplaceAllString(text, v.with)
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}
