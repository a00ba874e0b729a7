package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// session has the times of the commands of an agent's session; inside are those in a shell in the
// container.
type session struct{ api, docker, inside sample }

// sessionTargets are how many times faster than by docker exec a session must be, by runtime.
var sessionTargets = map[string]float64{"runc": 10, "runsc": 4}

// project is where the commands run. projectScript makes its files.
const (
	project       = "/tmp/project"
	projectScript = `mkdir -p ` + project + `/src && cd ` + project + ` && git init -q . && git config user.email a@example.org && git config user.name a &&
for i in $(seq 20); do for j in $(seq 50); do echo "line $j of $i: TODO"; done > src/file$i.py; done &&
printf 'print(6 * 7)\n' > main.py && git add . && git commit -qm first && echo more >> src/file1.py`
)

// sessionCommands are repeated up to settings.session commands.
var sessionCommands = []struct {
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

func (s *service) measureSession(ctx context.Context) (found session, err error) {
	if _, err := s.call(ctx, boxID, types.Exec{Command: projectScript}); err != nil {
		return found, err
	}
	defer func() {
		_, removeErr := s.call(ctx, boxID, types.Exec{Command: "rm -rf " + project})
		err = errors.Join(err, removeErr)
	}()
	row := func(one func(line string, code int) (time.Duration, error)) func() (sample, error) {
		return func() (row sample, err error) {
			defer time.Sleep(settle)
			for _, c := range sessionCommands {
				time.Sleep(rest)
				if err := row.add(one("cd "+project+" && { "+c.line+"; }", c.code)); err != nil {
					return nil, err
				}
			}
			return row, nil
		}
	}
	err = byTurns(s.settings.session/len(sessionCommands), 1,
		way{&found.api, row(func(line string, code int) (time.Duration, error) { return s.timeExit(ctx, line, code) })},
		way{&found.docker, row(func(line string, code int) (time.Duration, error) {
			return s.timeDockerExec(ctx, code, "bash", "-c", line)
		})},
		way{&found.inside, func() (sample, error) { return s.printed(ctx, types.Exec{Command: sessionInside()}) }})
	return found, err
}

// sessionInside runs all commands in one shell and prints the time of each, in nanoseconds.
func sessionInside() string {
	script := "cd " + project + "\n"
	for _, c := range sessionCommands {
		script += "begun=$EPOCHREALTIME; { " + c.line + "; } >/tmp/out 2>&1; ended=$EPOCHREALTIME; echo $((${ended/./} - ${begun/./}))000\n"
	}
	return script + "rm /tmp/out"
}

// timeExit times a command line that has to exit with a code.
func (s *service) timeExit(ctx context.Context, line string, code int) (time.Duration, error) {
	timeout := longest
	return timed(func() error {
		out, err := s.api.Exec(ctx, boxID, types.Exec{Command: line, TimeoutMs: &timeout})
		if err == nil && (out.ExitCode == nil || *out.ExitCode != code) {
			err = fmt.Errorf("%q did not exit with %d: %s%s", line, code, out.Stdout, out.Stderr)
		}
		return err
	})
}

func sessionSection(f findings) section {
	s := section{
		title: "A session of an agent's commands",
		how: fmt.Sprintf("%d shell commands in a small repository in /tmp, each %s ms after the previous answer: ls, cat, grep, sed, git\n"+
			"status, git diff, find, head and tail, `python3 -c`, and one that fails. Through the API as in \"Warm commands\", and\n"+
			"by docker exec of `bash -c`; the two take turns in rows of ten different commands. In a shell: the same in one bash\n"+
			"that runs inside, without a rest in between. That is the commands' own time, and no way of running them could be\n"+
			"faster.", f.settings.session, millis(rest)),
		head: timesHead("runtime", "way", "mean"),
	}
	for _, r := range f.runtimes {
		x := r.session
		s.times(x.api, r.runtime, "API", millis(x.api.mean()))
		s.times(x.docker, r.runtime, "docker exec", millis(x.docker.mean()))
		s.times(x.inside, r.runtime, "in a shell", millis(x.inside.mean()))
		if target, judged := sessionTargets[r.runtime]; judged {
			s.judge(atLeast(r.runtime, "mean of docker exec ÷ API", ratio(x.docker.mean(), x.api.mean()), target, times))
		}
	}
	return s
}
