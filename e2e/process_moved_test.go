package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// A process whose working directory another call moves is ended, because its view would change. Its record, its event and
// the service's log say why, and its log says that the directory was made anew.
func TestAMovedWorkingDirectoryIsTold(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l.registerAs(t, "moved-web", types.Registration{UserID: "moved", Permissions: types.Permissions{WorkingDir: "/home/app"}})
		l.registerAs(t, "moved-all", types.Registration{UserID: "moved"})
		p := l.startProcess(t, "moved-web", types.StartProcess{Command: "echo in $PWD; ls; sleep 4113", KeepAlive: true, Permissions: workspace})
		prints(t, p, "in /home/app\n")
		told := make(chan string, 1)
		following := make(chan struct{})
		go func() {
			defer close(told)
			for event, err := range l.client.Events(ctx, client.EventQuery{UserID: "moved", Kinds: []types.ServiceKind{types.ServiceProcess}}) {
				switch {
				case err != nil:
					return
				case event.Kind == types.ServiceOpen:
					close(following)
				case event.Process.ID == p.ID && event.Process.Status == "exited":
					told <- event.Process.Reason
					return
				}
			}
		}()
		<-following
		l.bash(t, "moved-all", workspace, "touch /home/app/kept; mv /home/app /home/old")
		const why = "such as its working directory, was moved, replaced or removed"
		if reason := <-told; !strings.Contains(reason, why) {
			t.Errorf("the event says %q", reason)
		}
		prints(t, p, "[sandbox: its working directory /home/app was not there any more, moved or removed, and was made anew: it is empty]\nin /home/app\n")
		var now types.Process
		eventually(t, "it runs again", func() bool {
			now = l.process(t, "moved-web", p.ID)
			return now.Status == types.ProcessRunning && now.RestartCount == 1
		})
		if !strings.Contains(now.ExitReason, why) || now.Signal == nil || *now.Signal != "SIGKILL" || !strings.Contains(now.Notice, "made anew") {
			t.Errorf("%+v", now)
		}
		eventually(t, "the service's log says why", func() bool { return l.logged(p.ID, why) != "" })
	})
}
