package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/cli/wrapper"
	"github.com/daycare-run/sandbox/internal/version"
)

// leaves are the commands that do something.
func leaves(cmd *cobra.Command) (list []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.HasSubCommands() {
			list = append(list, leaves(sub)...)
		} else if !sub.Hidden && sub.Name() != "help" && (!sub.HasParent() || sub.Parent().Name() != "completion") {
			list = append(list, sub)
		}
	}
	return list
}

// Each command says what it does and shows how, and what it shows is a command line that it takes.
func TestHelpOfEveryCommand(t *testing.T) {
	if all := leaves(rootCommand()); len(all) < 18 {
		t.Fatalf("only %d commands", len(all))
	}
	for _, cmd := range leaves(rootCommand()) {
		t.Run(cmd.CommandPath(), func(t *testing.T) {
			if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
				t.Fatalf("it has no Short, Long or Example: %q %q %q", cmd.Short, cmd.Long, cmd.Example)
			}
			shown := 0
			for line := range strings.Lines(cmd.Example) {
				for _, args := range commandLines(line, cmd.CommandPath()) {
					shown++
					checkTakes(t, args)
				}
			}
			if shown == 0 {
				t.Errorf("no example runs %s:\n%s", cmd.CommandPath(), cmd.Example)
			}
		})
	}
}

// commandLines are the arguments of each time that a line of the shell runs a command of ours.
func commandLines(line, path string) (list [][]string) {
	for _, part := range strings.Split(line, "|") {
		part = strings.TrimPrefix(strings.TrimSpace(part), "sudo ")
		if !strings.HasPrefix(part, path) {
			continue
		}
		// The shell splits the words, so that quotes are what they are there.
		out, err := exec.Command("bash", "-c", `show() { printf '%s\0' "$@"; }; show `+strings.TrimPrefix(part, "sandbox ")).Output()
		if err == nil {
			list = append(list, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"))
		}
	}
	return list
}

// checkTakes sees that a command line has flags, and arguments, that its command knows.
func checkTakes(t *testing.T, args []string) {
	t.Helper()
	cmd, rest, err := rootCommand().Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err == nil {
		err = cmd.ValidateRequiredFlags()
	}
	if err == nil {
		err = cmd.ValidateFlagGroups()
	}
	if err != nil {
		t.Errorf("%q: %v", args, err)
	}
}

// The wrapper's page refers to the help for the keys of a settings file.
func TestHelpHasAllKeysOfSettings(t *testing.T) {
	help := rootCommand().Long
	for _, of := range []reflect.Type{reflect.TypeFor[wrapper.Settings](), reflect.TypeFor[wrapper.Filesystem](), reflect.TypeFor[wrapper.Network]()} {
		for _, field := range reflect.VisibleFields(of) {
			key := field.Tag.Get("json")
			if key != "" && !regexp.MustCompile(`\b`+key+`\b`).MatchString(help) {
				t.Errorf("the help does not name %s", key)
			}
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	l := newLab(t, nil)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := l.ok("", "completion", shell)
		if !strings.Contains(script, "sandbox") || len(script) < 1000 {
			t.Errorf("%s: %.200s", shell, script)
		}
		if shell == "bash" {
			check := exec.Command("bash", "-n")
			check.Stdin = strings.NewReader(script)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("bash: %v: %s", err, out)
			}
		}
	}
}

// A shell's start has SANDBOX_URL, and no token need be there yet.
func TestCompletionScriptsNeedNoService(t *testing.T) {
	t.Setenv("SANDBOX_URL", "https://sandbox.example.org:7480")
	root := rootCommand()
	root.SetArgs([]string{"completion", "bash"})
	root.SetOut(io.Discard)
	if err := root.Execute(); err != nil {
		t.Error(err)
	}
}

// What the service knows completes flags and arguments.
func TestCompletionOfWhatIsThere(t *testing.T) {
	l := newLab(t, nil, three(time.Now())[0])
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"exec", "--user", ""}, []string{"alice"}},
		{[]string{"egress", "log", "--user", ""}, []string{"alice"}},
		{[]string{"exec", "--sandbox", ""}, []string{"a", "agent-7"}},
		{[]string{"process", "logs", "--user", "alice", ""}, []string{"p-aaaaaaaaaaaa\tweb"}},
		{[]string{"exec", "--grant", ""}, []string{"@workspace", "@network", "@events", "@read:", "@write:", "@process:", "@secret:"}},
	} {
		out := l.ok("", append([]string{"__complete"}, tt.args...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if got := lines[:len(lines)-1]; strings.Join(got, " ") != strings.Join(tt.want, " ") {
			t.Errorf("%q completes to %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	newLab(t, nil).ok("", "man", dir)
	page, err := os.ReadFile(filepath.Join(dir, "sandbox-exec.1"))
	if err != nil || !strings.Contains(string(page), `.SH EXAMPLE`) || !strings.HasPrefix(strings.TrimSpace(string(page)), ".nh") {
		t.Errorf("%v: %.300s", err, page)
	}
	pages, err := os.ReadDir(dir)
	if err != nil || len(pages) < 20 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
}

// As with other programs, and without a service.
func TestVersionFlag(t *testing.T) {
	cmd := rootCommand()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--version", "--socket", filepath.Join(t.TempDir(), "none.sock")})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if want := "sandbox version " + version.String() + "\n"; out.String() != want {
		t.Errorf("%q, not %q", out.String(), want)
	}
}
