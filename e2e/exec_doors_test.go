package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// What is beside the output is told at every door: in the API, on the command line and to an agent
// over MCP.
func TestEveryDoorTellsTheSame(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "doors"
		l.register(t, user)
		a := l.agent(t, "--user", user)
		said := func(t *testing.T, want string, doors map[string]string) {
			t.Helper()
			for door, text := range doors {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q is not in %.2000q", door, want, text)
				}
			}
		}
		for _, tt := range []struct{ name, command, want string }{
			{"drained output", "echo late > >(cat)", "late\n"},
			{"a long command", "x=" + strings.Repeat("a", 100<<10) + "; echo ${#x}", "102400\n"},
			{"both ends of long output", "seq 1000000", "999999\n1000000\n"},
			{"leftovers", "sleep 4199 & echo on", "1 background process was ended: sleep 4199"},
			{"no network", "git clone https://example.org/a /tmp/a", "the command had no network"},
			{"a read-only place", "echo x > ~/new", "may not write to /home/new"},
			{"a full /tmp", "head -c 64M /dev/zero > /tmp/full",
				"no space left in /tmp: it may hold 16Mi (limits.tmp)"},
			{"processes", startsTooMany, outOfProcesses},
			{"memory", "exec " + eats, outOfMemory},
		} {
			t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
				out := l.run(t, user, types.Exec{Command: tt.command, Permissions: none})
				api := out.Stdout
				for _, hint := range out.Hints {
					api += hint.Message + "\n"
				}
				cli, _ := l.cli("exec", "--user", user, "--", tt.command).CombinedOutput()
				mcp, _ := a.call(t, "exec", anything{"command": tt.command}, nil)
				said(t, tt.want, map[string]string{"API": api, "CLI": string(cli), "MCP": mcp})
			})
		}
		l.put(t, user, "AGENTS.md", "rules\n")
		if err := os.Symlink("AGENTS.md", l.at(user, "CLAUDE.md")); err != nil {
			t.Fatal(err)
		}
		l.put(t, user, "large.gif", "GIF89a\x41\x1f\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff"+
			",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;") // 8001 by 1
		for path, want := range map[string]string{
			"CLAUDE.md": `it is a symbolic link to "~/AGENTS.md"`,
			"large.gif": "more than 8000 (read.maxImage)",
			"nothing":   "does not exist",
		} {
			t.Run(path, func(t *testing.T) {
				_, err := l.client.Read(t.Context(), user, types.Read{Target: client.Target(path)})
				cli, _ := l.cli("read", "--user", user, path).CombinedOutput()
				mcp, _ := a.call(t, "read", anything{"path": path}, nil)
				said(t, want,
					map[string]string{"API": fmt.Sprint(err), "CLI": string(cli), "MCP": mcp})
			})
		}
	}, "SANDBOXD_LIMITS_MEMORY=256Mi", "SANDBOXD_LIMITS_PIDS=128", "SANDBOXD_LIMITS_TMP=16Mi")
}
