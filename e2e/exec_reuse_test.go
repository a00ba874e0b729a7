package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// Calls with grants that were used before find their container warm, also those of a service that was
// killed, and each has the view of its own grants.
func TestEachViewIsColdOnce(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "warm", ".ssh/id", secret)
		l.put(t, "warm", "plain/file", "plain")
		l.registerAs(t, "warm", types.Registration{UserID: "warm", Permissions: types.Permissions{WriteDirs: []string{"/home/plain"}}})
		views := map[string][]string{"": none, "/home /home/plain": workspace, "/home/plain": {"@write:/home/plain"}}
		seen := map[string]bool{}
		look := func(when string) {
			for _, grants := range [][]string{none, workspace, none, {"@write:/home/plain"}, none, workspace, {"@write:/home/plain"}, {"@write:/home/plain", "@write:/home/plain"}, {"@read:/home/plain"}} {
				out := l.run(t, "warm", types.Exec{Permissions: grants, Command: "cat .ssh/id 2>/dev/null; for d in /home /home/plain; do touch $d/probe 2>/dev/null && echo $d && rm $d/probe; done; cat plain/file"})
				lines := strings.Fields(out.Stdout)
				view := strings.Join(lines[:len(lines)-1], " ")
				if want, known := views[view]; !known || (len(want) > 0) != (len(grants) > 0 && !strings.HasPrefix(grants[0], "@read")) || (len(want) > 0 && want[0] != grants[0]) || lines[len(lines)-1] != "plain" {
					t.Errorf("%s, with %v: %q", when, grants, out.Stdout)
				}
				if out.Cold == seen[view] {
					t.Errorf("%s, with %v: cold is %v", when, grants, out.Cold)
				}
				seen[view] = true
			}
			if n := len(l.containers(t)); n != 3 {
				t.Errorf("%s there are %d containers", when, n)
			}
		}
		look("first")
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		look("after the service was killed")
		// What appears while nobody looks is hidden all the same: those containers are not adopted.
		l.stop(syscall.SIGKILL)
		l.put(t, "warm", ".aws/key", secret)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		for _, grants := range views {
			if got := l.bash(t, "warm", grants, "cat .aws/key .ssh/id 2>/dev/null; echo done"); got != "done" {
				t.Errorf("with %v: %q", grants, got)
			}
		}
		t.Log(fmt.Sprint(len(l.containers(t)), " containers in the end"))
	})
}
