package e2e

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// exchangeMounts exchanges what a container's mount points are in, from another container of the user's.
//
//go:embed testdata/exchange_mounts.py
var exchangeMounts string

// A runtime makes what is missing of a mount point as the host's root, wherever its name leads to at that moment. While
// one container is made, a command in another exchanges what the mount points are in for links to outside.
func TestExchangeOfMountPoints(t *testing.T) {
	const rounds = 6
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "swap-points"
		dir, check := outside(t, l, "canary")
		hidden := []string{"/home/f"}
		for i := range 20 { // the longer a name is, the longer a runtime is about it
			name := fmt.Sprintf("x/%s%d", strings.Repeat("d/", 20), i)
			l.put(t, user, path.Join(name, "inside"), "inside")
			hidden = append(hidden, "/home/"+name)
		}
		l.put(t, user, "f", "inside")
		mkdir(t, l.at(user, "w"))
		l.register(t, user)
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(context.Background(), user, types.Exec{Permissions: workspace, TimeoutMs: unhurried, Argv: []string{"python3", "-c", exchangeMounts, dir, strconv.Itoa(rounds)}}, client.Streams{Stdout: out, Stderr: out})
			ended <- err
		}()
		eventually(t, "the command exchanges", func() bool { return strings.Contains(out.String(), "begun") })
		done, refusals := 0, map[string]int{}
		for i := range rounds {
			less := types.Restrictions{DenyRead: append(hidden, fmt.Sprintf("/home/w/z%d", i))}
			_, err := l.client.Exec(t.Context(), user, types.Exec{Permissions: []string{"@write:/home/w"}, Restrictions: less, Command: "true"})
			if err != nil {
				refusals[fmt.Sprintf("%.250s", err.Error())]++
			} else {
				done++
			}
			eventually(t, "it rests", func() bool { return strings.Count(out.String(), "rests") > i })
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		t.Logf("%d done; %s", done, strings.Join(strings.Fields(out.String()), " "))
		for refusal, times := range refusals {
			t.Logf("%d times %s", times, refusal)
		}
		check()
	})
}

// Containers that a service which was killed has left paused go on when they are taken over.
func TestAPausedContainerIsTakenOver(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "paused")
		l.sh(t, "paused", "true")
		process := l.startProcess(t, "paused", types.StartProcess{Command: "while :; do date +%s%N > /tmp/beat; sleep 0.1; done"})
		eventually(t, "the process writes", func() bool { return l.there("paused", "/tmp/beat") })
		for _, found := range l.containersOf(t, "paused") {
			// runc gives up a freeze that takes long.
			eventually(t, "Docker pauses it", func() bool { return l.engine.ContainerPause(t.Context(), found.ID) == nil })
		}
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		first := l.sh(t, "paused", "cat /tmp/beat")
		eventually(t, "the process goes on", func() bool { return l.sh(t, "paused", "cat /tmp/beat") != first })
		if got := l.process(t, "paused", process.ID); got.RestartCount != 0 {
			t.Errorf("it was started again: %+v", got)
		}
	})
}

// Who may write to a directory that others have mounted, too, cannot keep their containers from starting by touching it all
// the time: the mark by which a mount is verified is an access time.
func TestADirectoryThatIsTouchedAllTheTime(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		shared := l.path("users/touched-shared/data")
		mkdir(t, l.home("touched-by")) // of the same owner as what is mounted
		putFile(t, shared+"/file", "shared")
		if err := os.Chmod(shared, 0o777); err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"touched-by", "touched"} {
			l.registerAs(t, user, types.Registration{
				UserID: user, Mounts: []types.Mount{{Source: shared, Target: "/mnt/shared"}}, Permissions: types.Permissions{WriteDirs: []string{"/mnt/shared"}},
			})
		}
		const touch = "import os\nos.utime('/mnt/shared')\nos.mkdir('/mnt/shared/begun')\nwhile True: os.utime('/mnt/shared')"
		process := l.startProcess(t, "touched-by", types.StartProcess{Permissions: []string{"@write:/mnt/shared"}, Argv: []string{"python3", "-c", touch}})
		eventually(t, "it touches", func() bool { return exists(shared + "/begun") })
		for _, grants := range [][]string{{"@read:/mnt/shared"}, {"@write:/mnt/shared"}} {
			if got := l.bash(t, "touched", grants, "cat /mnt/shared/file"); got != "shared" {
				t.Errorf("%v: %q", grants, got)
			}
		}
		if got := l.process(t, "touched-by", process.ID); got.RestartCount != 0 {
			t.Errorf("it was started again: %+v", got)
		}
	})
}
