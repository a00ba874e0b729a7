package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// typical has the times of the commands of an agent's session; inside are those in a shell in the
// container.
type typical struct{ api, docker, inside sample }

// project is where the commands run. projectScript makes its files.
const (
	project       = "/tmp/project"
	projectScript = `mkdir -p ` + project + `/src && cd ` + project + ` && git init -q . && git config user.email a@example.org && git config user.name a &&
for i in $(seq 20); do for j in $(seq 50); do echo "line $j of $i: TODO"; done > src/file$i.py; done &&
printf 'print(6 * 7)\n' > main.py && git add . && git commit -qm first && echo more >> src/file1.py`
)

// typicalCommands are repeated up to settings.session commands.
var typicalCommands = []struct {
	line string
	code int
}{
	{"ls -la", 0},
	{"cat main.py", 0},
	{"grep -rn 'line 7 ' src", 0},
	{"sed -n '10,20p' src/file3.py", 0},
	{"git status --short", 0},
	{"python3 -c 'print(6*7)'", 0},
	{"cat missing.txt", 1},
	{"find . -name '*.py' -not -path './.git/*' | wc -l", 0},
	{"sed -i 's/line 1 /line one /' src/file2.py && git diff --stat", 0},
	{"head -n 5 src/file4.py; tail -n 5 src/file4.py", 0},
}

// measureSession measures the ways by turns, each with all commands in a row.
func (s *service) measureSession(ctx context.Context) (found typical, err error) {
	if _, err := s.call(ctx, boxID, types.Exec{Command: projectScript}); err != nil {
		return found, err
	}
	defer func() {
		_, removeErr := s.call(ctx, boxID, types.Exec{Command: "rm -rf " + project})
		err = errors.Join(err, removeErr)
	}()
	rows := s.settings.session / len(typicalCommands)
	for turn := -1; turn < rows; turn++ {
		into := &found
		if turn < 0 {
			into = &typical{}
		}
		for _, c := range typicalCommands {
			time.Sleep(rest)
			if err := into.api.add(s.timeTypical(ctx, c.line, c.code)); err != nil {
				return found, err
			}
		}
		for _, c := range typicalCommands {
			time.Sleep(rest)
			if err := into.docker.add(s.timeTypicalDocker(ctx, c.line, c.code)); err != nil {
				return found, err
			}
		}
		time.Sleep(settle)
		inside, err := s.callFloor(ctx, types.Exec{Command: typicalInside()})
		if err != nil {
			return found, err
		}
		into.inside = append(into.inside, inside...)
	}
	return found, nil
}

// typicalInside runs all commands in one shell and prints the time of each, in nanoseconds.
func typicalInside() string {
	script := "cd " + project + "\n"
	for _, c := range typicalCommands {
		script += "begun=$EPOCHREALTIME; { " + c.line + "; } >/tmp/out 2>&1; ended=$EPOCHREALTIME; echo $((${ended/./} - ${begun/./}))000\n"
	}
	return script + "rm /tmp/out"
}

func inProject(line string) string { return "cd " + project + " && { " + line + "; }" }

func (s *service) timeTypical(ctx context.Context, line string, code int) (time.Duration, error) {
	timeout := longest
	begun := time.Now()
	out, err := s.api.Exec(ctx, boxID, types.Exec{Command: inProject(line), TimeoutMs: &timeout})
	took := time.Since(begun)
	if err == nil && (out.ExitCode == nil || *out.ExitCode != code) {
		err = fmt.Errorf("%q did not exit with %d: %s%s", line, code, out.Stdout, out.Stderr)
	}
	return took, err
}

func (s *service) timeTypicalDocker(ctx context.Context, line string, code int) (time.Duration, error) {
	begun := time.Now()
	got, err := s.dockerExecTo(ctx, io.Discard, "bash", "-c", inProject(line))
	took := time.Since(begun)
	if err == nil && got != code {
		err = fmt.Errorf("docker exec: %q did not exit with %d but with %d", line, code, got)
	}
	return took, err
}
