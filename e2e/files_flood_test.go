package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// renames moves a directory in which something is hidden from other calls, and one that nobody asks about, to and fro
// until it is ended.
const renames = `
import os, time
for name in ("/home/p", "/home/plain"): os.makedirs(name, exist_ok=True)
n = 0
while True:
    for i in range(100):
        for name in ("/home/p", "/home/plain"):
            try: os.rename(name, name + "2"); os.rename(name + "2", name); n += 1
            except OSError: pass
    if n == 200: open("/home/begun", "w").close()
`

// A tenant renames without end what is watched for its own calls. Where that takes more than it may, its containers are
// ended, with a reason; one that found the directory away, and nothing to hide, may go on. Another tenant's command goes
// on in any case, its calls begin, and what must not be seen there ends it as ever.
func TestEndlessRenamesDisturbNobody(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for _, user := range []string{"renames-calm", "renames-wild"} {
			l.put(t, user, "plain/file", "plain")
			l.register(t, user)
		}
		out, ended := l.polling(t, "renames-calm", none)
		wild := make(chan error, 1)
		ctx, enough := context.WithCancel(t.Context())
		defer enough()
		go func() {
			_, err := l.client.Exec(ctx, "renames-wild", types.Exec{Permissions: workspace, Argv: []string{"python3", "-c", renames}, TimeoutMs: unhurried})
			wild <- err
		}()
		eventually(t, "it renames", func() bool {
			_, err := os.Stat(l.at("renames-wild", "begun"))
			return err == nil
		})
		hides := types.Exec{Restrictions: types.Restrictions{DenyRead: []string{"/home/p/x"}}, Command: "sleep 5"}
		began := time.Now()
		if _, err := l.client.Exec(t.Context(), "renames-wild", hides); err != nil && !strings.Contains(err.Error(), "container") {
			t.Errorf("who is to be hidden from what is exchanged without end: %v", err)
		}
		t.Logf("the tenant's own call is over after %v", time.Since(began))
		if got := l.bash(t, "renames-calm", workspace, "cat plain/file"); got != "plain" {
			t.Errorf("another's call: %q", got)
		}
		select {
		case err := <-ended:
			t.Fatalf("another's command has ended: %v", err)
		default:
		}
		began = time.Now()
		if err := errors.Join(os.MkdirAll(l.path("renames-new"), 0o755), os.WriteFile(l.path("renames-new/id"), []byte(secret), 0o644),
			syscall.Rename(l.path("renames-new"), l.at("renames-calm", ".ssh"))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("another's command goes on with what it must not see")
		}
		t.Logf("it has ended %v after what it must not see came, which it read %d times", time.Since(began), strings.Count(out.String(), secret))
		enough()
		t.Logf("the tenant's own: %v", <-wild)
	})
}
