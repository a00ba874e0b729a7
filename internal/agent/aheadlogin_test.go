//go:build linux

package agent

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// loginLine is a line that our own callers have, and namedLine one of E2B's clients.
func loginLine(line string) wire.Start {
	return wire.Start{Command: launch.Command{Shell: line, Login: true}}
}

func namedLine(line string) wire.Start {
	return wire.Start{Command: launch.Command{Process: specs.Process{Args: []string{"/bin/bash", "-l", "-c", line}}}}
}

// loginFiles are what may be at home, by name.
var loginFiles = []map[string]string{
	{},
	{".profile": `echo profile $0 "$-" $# $_ $? $LINENO $SHLVL ${BASH_SOURCE[0]##*/} ${#FUNCNAME[@]} ${BASH_LINENO[*]} $FOO "$BASH_EXECUTION_STRING"; caller; caller 0; export FROM=profile; shopt login_shell; PS1=x`},
	{".bash_profile": "A=1; echo bash_profile", ".bash_login": "echo not this", ".profile": "echo nor this"},
	{".bash_login": "echo bash_login >&2; cd /usr", ".profile": "echo not this"},
	{".profile": "nosuch\nls /nosuch\nfalse", ".bash_logout": "echo logout $? $0"},
	{".profile": "exit 3; echo not this", ".bash_logout": "echo logout $?"},
	{".profile": "return 5\necho not this"},
	{".profile": "false", ".bash_logout": "exit 9"},
	{".profile": "set -e\ntrap 'echo ended $?' EXIT"},
	{".profile": "set -e; false; echo not this"},
	{".profile": "set -u; echo $nosuch; echo not this"},
	{".profile": ": ${nosuch?is missing}; echo not this"},
	{".profile": "readonly R=1; R=2; echo this"},
	{".profile": "echo before; if then"},
	{".profile": "echo 'open"},
	{".profile": "cat <<X\n$FOO\n"},
	{".profile": "set -x; v=1; set -- a b c"},
	{".profile": "trap 'echo err $LINENO' ERR; trap 'echo debug >&2' DEBUG; f() { echo function; }"},
	{".profile": "alias ll='echo alias'; shopt -s expand_aliases; set -o pipefail; shopt -s nullglob"},
	{".profile": "read -r x; echo took $x"},
	{".profile": "exec echo replaced"},
	{".profile": "set -m; sleep 0 & wait; jobs >/dev/null; jobs"}, // bash tells of a job that ended before it waited, and of no other
	{".profile": ". ~/.more; echo after", ".more": "echo more ${BASH_SOURCE[*]##*/} ${BASH_LINENO[*]} $LINENO; return 4"},
	{".profile": "kill -TERM $$"},
	{".profile": "PATH=/nosuch; HOME=/nosuch; IFS=e"},
	{".profile": "f() { return 7; }; f; break; continue; local x; shift 3"},
	{".profile": "export LANG=C LC_ALL=C; unset FOO; unset -f imp; unset BASH_EXECUTION_STRING"},
	{".profile/x": "in a directory"},
	{".profile": "\x7fELF\x00\x01binary"},
	{".profile": "hash -p /bin/echo zz; enable -n echo; exec 2>&1; set -f; umask 077; ulimit -c 0"},
	{".profile": "echo $((1 / 0)); echo this"},
	{".profile": "set -o posix; echo posix"},
	{".profile": "PROMPT_COMMAND='echo no'; PS4='> '; HISTFILE=x; set -o history; history"},
}

// loginScripts are run with each of them.
var loginScripts = []string{
	`echo $0 "$-" $? $# $_ $LINENO $SHLVL $PWD; shopt -p login_shell; echo $BASHOPTS; echo "${PS1-none} ${PS2-none}" "$FROM $A"`,
	"nosuch; exit 4", "f; ll; imp; declare -p R FROM A", "echo $BASH_ARGC ${BASH_SOURCE[@]} ${FUNCNAME[@]}; caller; return 2", "if then", "ls -d /usr", "echo a; logout", "(exit 3)", "umask; zz hi; read -r y; echo $y",
	"trap; set -o; alias; jobs", "cd; pwd; false", "", "kill -HUP $$", `echo "$PATH"; env -i x="$IFS" /usr/bin/env`,
}

// A login shell that was started ahead gives what an ordinary login shell gives.
func TestLoginShellsAheadAreTheSame(t *testing.T) {
	b := startBoth(t)
	b.logInWith(t, map[string]string{".profile": "x=1; export y=2"})
	for script := range strings.SplitSeq(strings.TrimSuffix(aheadScripts, "\n"), "\n===\n") {
		if !strings.Contains(script, "/cmdline") {
			b.compare(t, b.with(loginLine(script)), "in1\nin2\n", true)
		}
	}
}

// When its command begins it reads the same files as an ordinary login shell, in the same way, whatever they hold.
func TestLoginShellsAheadReadTheSameFiles(t *testing.T) {
	b := startNamed(t)
	for _, files := range loginFiles {
		b.logInWith(t, files)
		for _, script := range loginScripts {
			b.compare(t, b.with(namedLine(script)), "in1\nin2\n", true)
		}
	}
	b.logInWith(t, nil)
	for _, script := range []string{`tr '\0' '|' </proc/$$/cmdline | head -c 40`, "ps -o args= -p $$ | head -c 40"} {
		b.compare(t, b.with(namedLine(script)), "", true)
	}
}

// logInWith has these files at home, for both.
func (b both) logInWith(t *testing.T, files map[string]string) {
	t.Helper()
	setup := "rm -rf ~/.profile ~/.bash_* ~/.more"
	for _, file := range slices.Sorted(maps.Keys(files)) {
		setup += "; mkdir -p ~/$(dirname " + file + "); printf %b " + quote(files[file]) + " >~/" + file
	}
	b.compareStarted(t, b.with(wire.Start{Command: launch.Command{Process: specs.Process{Args: []string{"sh", "-c", setup}}}}), "", false, false)
}

// A command that a waiting shell cannot run is left to an ordinary start.
func TestUnfitLoginCommandsAreNotStartedAhead(t *testing.T) {
	b := startNamed(t)
	for _, args := range [][]string{
		{"/bin/bash", "-l", "-c", "-x"}, {"/bin/bash", "-l", "-c", "+x"}, {"/bin/bash", "-l", "-c"}, {"/bin/bash", "-c", "echo $0 $-"}, {"/bin/bash", "-l", "-c", "echo $0 $@", "a", "b"},
		{"bash", "-l", "-c", "echo $0"}, {"/bin/sh", "-l", "-c", "echo $0"},
	} {
		b.compareStarted(t, b.with(wire.Start{Command: launch.Command{Process: specs.Process{Args: args}}}), "", false, false)
	}
	b.compareStarted(t, b.with(aLine("echo $0")), "", false, false)
}
