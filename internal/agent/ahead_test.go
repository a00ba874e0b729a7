//go:build linux

package agent

import (
	"cmp"
	_ "embed"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// aheadScripts are command lines, between lines of "===".
//
//go:embed testdata/ahead_scripts.txt
var aheadScripts string

func aLine(line string) wire.Start { return wire.Start{Command: launch.Command{Shell: line}} }

func in(dir string, start wire.Start) wire.Start {
	start.Cwd = dir
	return start
}

// with completes a command by what commands usually have.
func (b both) with(start wire.Start) wire.Start {
	start.Ahead, start.Cwd = true, cmp.Or(start.Cwd, b.dir)
	start.Env = []string{
		"FOO=bär", "HOME=" + b.dir, "LANG=C.UTF-8", "PATH=" + defaultPath, "TMPDIR=" + b.dir, "XDG_CACHE_HOME=" + b.dir + "/.cache",
		"BASH_FUNC_imp%%=() {  echo imported\n}", "not-a-name=1", "SHLVL=4", "PS1=prompt", "PS2=",
	}
	return start
}

var numbers = regexp.MustCompile(`\b[1-9]\d{1,6}\b`)

// compare runs a command both ways, at the same time. Numbers of two digits and more may be those of processes where
// vary is set.
func (b both) compare(t *testing.T, start wire.Start, stdin string, vary bool) {
	t.Helper()
	b.compareStarted(t, start, stdin, vary, true)
}

// compareStarted also compares with whether it is to be started ahead.
func (b both) compareStarted(t *testing.T, start wire.Start, stdin string, vary, ahead bool) {
	t.Helper()
	var outcomes [2]outcome
	var errs [2]error
	done := make(chan struct{})
	go func() {
		defer close(done)
		outcomes[0], errs[0] = exchange(b.plain, start, stdin)
	}()
	outcomes[1], errs[1] = exchange(b.ahead, start, stdin)
	<-done
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatalf("%.2000q: %v", start.Shell, err)
	}
	if outcomes[1].Exit.Ahead != ahead && outcomes[1].Exit.Fault == wire.FaultNone {
		t.Errorf("started ahead: %v, not %v: %.2000q %q %q", !ahead, ahead, start.Shell, start.Args, start.Env[len(start.Env)-1])
	}
	outcomes[1].Exit.Ahead = false
	if vary {
		for i := range outcomes {
			outcomes[i].Stdout = numbers.ReplaceAllString(outcomes[i].Stdout, "N")
			outcomes[i].Stderr = numbers.ReplaceAllString(outcomes[i].Stderr, "N")
		}
	}
	if diff := gocmp.Diff(outcomes[0], outcomes[1]); diff != "" {
		t.Errorf("%.2000s\n%s%.2000s", start.Shell, strings.Join(start.Args, " "), diff)
	}
}

// A shell that was started ahead gives what bash gives: the same output, messages and exit code.
func TestShellsAheadAreTheSame(t *testing.T) {
	b := startBoth(t)
	compare := func(script string, vary bool) {
		b.compare(t, b.with(aLine(script)), "in1\nin2\n", vary)
	}
	scripts := 0
	for script := range strings.SplitSeq(strings.TrimSuffix(aheadScripts, "\n"), "\n===\n") {
		compare(script, true)
		scripts++
	}
	for _, script := range foundScripts(t, 700) {
		compare(script, false)
		scripts++
	}
	for generated := newGenerator(15); scripts < 2100; scripts++ {
		compare(generated.script(), false)
	}
}

// The errors for a directory that cannot be entered are the same, too.
func TestDirectoriesAheadAreTheSame(t *testing.T) {
	b := startBoth(t)
	b.compare(t, b.with(aLine("mkdir dir closed; chmod 0 closed; echo >file; ln -s dir link; ln -s loop loop")), "", false)
	for _, dir := range []string{"/", "/nosuch", "/root/x", b.dir + "/file", b.dir + "/dir", b.dir + "/closed", b.dir + "/link", b.dir + "/loop", b.dir + "/./dir/../dir"} {
		b.compare(t, b.with(in(dir, aLine("pwd; pwd -P; echo $PWD $OLDPWD"))), "", false)
	}
}

// What a waiting shell cannot do as an ordinary start would is left to an ordinary start.
func TestUnfitCommandsAreNotStartedAhead(t *testing.T) {
	b := startBoth(t)
	for _, entry := range []string{
		"BASH_ENV=env.sh", "ENV=x", "SHELLOPTS=xtrace", "BASHOPTS=nullglob", "POSIXLY_CORRECT=", "BASH_COMPAT=4.2", "BASH_XTRACEFD=2", "LD_PRELOAD=libm.so.6",
		"LD_LIBRARY_PATH=/nosuch", "LD_DEBUG=help", "LC_ALL=C", "LANG=C", "LC_MESSAGES=POSIX", "LANGUAGE=de", "LOCPATH=/nosuch", "GCONV_PATH=/nosuch",
		"GLIBC_TUNABLES=x", "MALLOC_ARENA_MAX=1", "PATH=/bin", "PATH=" + b.dir + ":" + defaultPath, "EMACS=t", "SSH_CLIENT=x", "SSH2_CLIENT=x", "BIG=" + strings.Repeat("x", 128<<10),
	} {
		start := b.with(aLine(`echo "$- $BASHOPTS $SHELLOPTS ${#LC_ALL}"; nosuch`))
		start.Env = append(start.Env, entry)
		b.compareStarted(t, start, "", false, false)
	}
	for _, size := range []int{100 << 10, 128<<10 - 2, 128<<10 - 1, 128 << 10, 2 << 20} {
		text := "echo $0 $# ${BASH_SOURCE} " + strings.Repeat("x", size)
		b.compareStarted(t, b.with(aLine(text[:size])), "", false, true)
	}
	b.compareStarted(t, b.with(wire.Start{Command: launch.Command{Process: specs.Process{Args: []string{"echo", "a program"}}}}), "", false, false)
	b.compareStarted(t, b.with(aLine("echo a\x00b")), "", false, false)
	b.compareStarted(t, b.with(wire.Start{}), "", false, false)
}

// These differ, and docs/api.md says so.
func TestDifferencesOfShellsAhead(t *testing.T) {
	b := startBoth(t)
	for _, test := range []struct {
		script, plain, ahead string
		login                bool
	}{
		{`tr -d '[:graph:] ' </proc/$$/cmdline | wc -c | grep -c '^4$'`, "1\n", "0\n", false},
		{`tr -d '[:graph:] ' </proc/$$/environ | wc -c | grep -c '...'`, "0\n", "1\n", false},
		{": " + strings.Repeat("x", 5000) + "\nps -ww -o args= -p $$ | wc -c | grep -c '^5...$'", "1\n", "0\n", false},
		{`while read -r l; do [[ $l != *ahead* ]] || n=1; done </proc/$$/maps; echo $n`, "\n", "1\n", false},
		{`n=${#BASH_EXECUTION_STRING}; ((n == ` + strconv.Itoa(len(fromFile)) + `)) && echo short` + strings.Repeat(" ", launch.MaxString), "short\n", "", false},
		{`tr '\0' ' ' </proc/$$/cmdline | cut -d' ' -f2`, "-lc\n", "-c\n", true},
	} {
		for mux, want := range map[*yamux.Session]string{b.plain: test.plain, b.ahead: test.ahead} {
			got, err := exchange(mux, b.with(wire.Start{Command: launch.Command{Shell: test.script, Login: test.login}}), "")
			if err != nil || got.Stdout != want {
				t.Errorf("%.200s: %+v, not %q (%v)", test.script, got, want, err)
			}
		}
	}
}

// A shell is started ahead from where no command can have put its own: from the directories of PATH that precede any other.
func TestShellsAheadComeFromTheImage(t *testing.T) {
	for path, want := range map[string][]string{
		"/usr/bin:/bin:/home/.local/bin": {"/usr/bin/bash", "/bin/bash"},
		"/usr/bin:/home/bin:/bin":        {"/usr/bin/bash"},
		"/home/bin:/usr/bin":             nil,
		"bin:/usr/bin":                   nil,
		":/usr/bin":                      nil,
	} {
		a := newAhead(nil, -1, 1, aheadBuiltin, []string{"PATH=" + path})
		var got []string
		for _, p := range a.shells {
			got = append(got, p.Path)
		}
		if !slices.Equal(got, want) || a.useless != (want == nil) {
			t.Errorf("%s: %q, useless %v", path, got, a.useless)
		}
		if p, _ := prepare(launch.Command{Process: specs.Process{Cwd: "/", Env: []string{"PATH=" + path}}, Shell: "true"}, 1); !a.useless && !a.fits(p) {
			t.Errorf("%s: a command does not fit", path)
		}
	}
}
