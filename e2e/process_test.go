package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

const counting = `i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done`

// checkCount makes sure that a log has the lines of counting, each once and in order, and returns the last.
func checkCount(t *testing.T, log string) int {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	for i, line := range lines {
		if line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	return len(lines)
}

// A process goes on without a gap while the service is killed and started again, and is what it was.
func TestProcessOutlivesTheService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "durable")
		p := l.startProcess(t, "durable", types.StartProcess{Name: "counter", Command: counting, Secrets: map[string]string{"TOKEN": "hush-hush"}, KeepAlive: true})
		prints(t, p, "line 3\n")
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 10 {
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // the moment is what is tried
			l.stop(syscall.SIGKILL)
			before := checkCount(t, logOf(t, p))
			eventually(t, "it goes on without the service", func() bool { return strings.Count(logOf(t, p), "\n") > before })
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
		}
		var now types.Process
		eventually(t, "it is adopted", func() bool { now = l.process(t, "durable", p.ID); return now.Status == types.ProcessRunning })
		if now.RestartCount != 0 || now.PID == nil || p.PID == nil || *now.PID != *p.PID || !now.LastStartedAt.Equal(p.LastStartedAt) {
			t.Errorf("it was %+v, it is %+v", p, now)
		}
		checkCount(t, logOf(t, p))
		checkNowhere(t, l.path("data"), "hush-hush")
		checkNowhere(t, filepath.Dir(p.LogPath), "hush-hush")
		// An ordinary stop of the service leaves it alone, too; its own end is recorded while nobody looks.
		l.stop(syscall.SIGTERM)
		if n := len(l.processContainers(t)); n != 1 {
			t.Fatalf("%d containers", n)
		}
		if err := l.engine.ContainerKill(context.Background(), "daycare-process-"+p.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it comes back, with its secrets", func() bool {
			now = l.process(t, "durable", p.ID)
			return now.Status == types.ProcessRunning && now.RestartCount == 1
		})
	})
}

func checkNowhere(t *testing.T, dir, secret string) {
	t.Helper()
	for _, name := range below(t, dir) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && strings.Contains(string(content), secret) { // what is a folder has no content
			t.Errorf("%s holds the secret", name)
		}
	}
}

// A process that dies comes back, later each time; one without keepAlive does not.
func TestProcessComesBack(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "crash")
		once := l.startProcess(t, "crash", types.StartProcess{Command: "echo once; exit 3"})
		p := l.startProcess(t, "crash", types.StartProcess{Command: "echo again; exit 5", KeepAlive: true})
		eventually(t, "it is started a third time", func() bool { return strings.Count(logOf(t, p), "again\n") >= 3 })
		var now types.Process
		// While it is being started, it has ended already and has no next time.
		eventually(t, "its end is known", func() bool {
			now = l.process(t, "crash", p.ID)
			return now.Status == types.ProcessExited && now.RestartCount >= 2 && !now.NextRestartAt.IsZero()
		})
		if now.ExitCode == nil || *now.ExitCode != 5 || now.DesiredState != types.ProcessRunning {
			t.Errorf("%+v", now)
		}
		eventually(t, "the other has ended", func() bool {
			now = l.process(t, "crash", once.ID)
			return now.Status == types.ProcessExited
		})
		if now.ExitCode == nil || *now.ExitCode != 3 || now.RestartCount != 0 || logOf(t, once) != "once\n" {
			t.Errorf("without keepAlive: %+v %q", now, logOf(t, once))
		}
		// While it waits it can be stopped for good.
		var stopped types.Process
		l.call(t, http.MethodPost, "crash/processes/"+p.ID+"/stop", struct{}{}, &stopped)
		if stopped.Status == types.ProcessRunning || stopped.DesiredState != types.ProcessStopped || !stopped.NextRestartAt.IsZero() {
			t.Errorf("%+v", stopped)
		}
	})
}

// A stop ends all that the command has started, however it tried to get away; a signal, an exit code and a
// lack of memory are told apart.
func TestProcessStops(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "stops")
		tree := l.startProcess(t, "stops", types.StartProcess{
			Command: "setsid sh -c 'trap \"\" TERM; sleep 7311 & sleep 7312' & (setsid sleep 7313 &) ; trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.1; done",
		})
		prints(t, tree, "ready\n")
		for _, c := range []struct {
			p        types.Process
			signal   string
			code     int
			bySignal string
		}{
			{tree, "TERM", 9, ""},
			{l.startProcess(t, "stops", types.StartProcess{Argv: []string{"sleep", "7314"}}), "KILL", 0, "SIGKILL"},
			{l.startProcess(t, "stops", types.StartProcess{Argv: []string{"sleep", "7315"}}), "INT", 0, "SIGINT"},
		} {
			var ended types.Process
			l.call(t, http.MethodPost, "stops/processes/"+c.p.ID+"/stop", map[string]string{"signal": c.signal}, &ended)
			switch {
			case ended.Status != types.ProcessStopped || ended.PID != nil || ended.OOMKilled:
				t.Errorf("%s: %+v", c.signal, ended)
			case c.bySignal == "" && (ended.ExitCode == nil || *ended.ExitCode != c.code || ended.Signal != nil):
				t.Errorf("%s: %+v", c.signal, ended)
			case c.bySignal != "" && (ended.Signal == nil || *ended.Signal != c.bySignal || ended.ExitCode != nil):
				t.Errorf("%s: signal %v, %+v", c.signal, ended.Signal, ended)
			}
		}
		if !strings.Contains(logOf(t, tree), "told\n") {
			t.Errorf("%q", logOf(t, tree))
		}
		if n := len(l.processContainersOf(t, "stops")); n != 0 {
			for _, c := range l.processContainersOf(t, "stops") {
				if c.State == container.StateRunning {
					t.Errorf("%s runs", c.Names)
				}
			}
		}
		for _, status := range []int{
			l.call(t, http.MethodPost, "stops/processes/"+tree.ID+"/stop", map[string]string{"signal": "QUIT"}, nil),
			l.call(t, http.MethodPost, "stops/processes", types.StartProcess{Command: " "}, nil),
			l.call(t, http.MethodPost, "stops/processes", types.StartProcess{Command: "true", Cwd: "/etc"}, nil),
			l.call(t, http.MethodPost, "stops/processes", types.StartProcess{Command: "true", Home: "/home"}, nil),
		} {
			if status != http.StatusBadRequest && status != http.StatusForbidden {
				t.Errorf("bad input: %d", status)
			}
		}
	})
}

// Users see their own processes alone, and a process sees what a call with its grants would.
func TestProcessesOfUsers(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "proc-a")
		l.register(t, "proc-b")
		l.put(t, "proc-a", ".ssh/id", secret)
		p := l.startProcess(t, "proc-a", types.StartProcess{
			Name: strings.Repeat("é", 100), Permissions: []string{"@workspace"},
			Command: "cat ~/.ssh/id .ssh/id; echo $HOME; id -u; touch /home/made && echo made; ls /sys/class/net 2>/dev/null | grep -v '^lo$'; echo shared > /tmp/shared; echo end; sleep 7321",
		})
		prints(t, p, "end\n")
		if log := logOf(t, p); strings.Contains(log, secret) || !strings.Contains(log, "/home\n1000\nmade\nend\n") {
			t.Errorf("%q", log)
		}
		if len([]rune(p.Name)) != 80 {
			t.Errorf("%q", p.Name)
		}
		if got := l.sh(t, "proc-a", "cat /tmp/shared"); got != "shared" {
			t.Errorf("/tmp: %q", got)
		}
		for _, path := range []string{"proc-b/processes/" + p.ID, "proc-b/processes/p-aaaaaaaaaaaa"} {
			if status := l.call(t, http.MethodGet, path, nil, nil); status != http.StatusNotFound {
				t.Errorf("%s: %d", path, status)
			}
		}
		var list types.ProcessList
		if l.call(t, http.MethodGet, "proc-b/processes", nil, &list); len(list.Processes) != 0 {
			t.Errorf("another user sees %+v", list)
		}
		if l.call(t, http.MethodGet, "proc-a/processes", nil, &list); len(list.Processes) != 1 {
			t.Errorf("its user sees %+v", list)
		}
	})
}

// A log is rotated without loss, stays within its bound, and can be followed through all of it: by who keeps up.
// The log holds only the first 1,000 lines and the last 4,000, so the command waits now and then until they have been read.
func TestProcessLog(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "logs")
		p := l.startProcess(t, "logs", types.StartProcess{
			Command: "for i in $(seq 30000); do echo line $i; if [ $((i % 1000)) = 0 ]; then until [ -e read-$i ]; do sleep 0.02; done; fi; done; echo end; exit 4",
		})
		follower := l.cli("process", "logs", "--sandbox", "logs", "-f", "-n", "10000", p.ID)
		stdout, err := follower.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := follower.Start(); err != nil {
			t.Fatal(err)
		}
		var followed []string
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			followed = append(followed, lines.Text())
			if n := len(followed); n%1000 == 0 {
				l.put(t, "logs", fmt.Sprintf("read-%d", n), "")
			}
		}
		if err := follower.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := len(followed); n != 30001 || followed[n-1] != "end" {
			t.Fatalf("followed %d lines, ending in %.100q", n, followed[max(0, n-3):])
		}
		checkCount(t, strings.Join(followed[:30000], "\n"))
		if size := len(logOf(t, p)); size > 64<<10 {
			t.Errorf("the log has %d bytes", size)
		}
		if first, err := l.cli("process", "logs", "--sandbox", "logs", "--first", "-n", "2", p.ID).Output(); err != nil || string(first) != "line 1\nline 2\n" {
			t.Errorf("its first lines are %q, %v", first, err)
		}
		kept, err := l.cli("process", "logs", "--sandbox", "logs", "-f", "--first", p.ID).Output()
		head, tail, cut := strings.Cut(string(kept), "[sandbox: output is left out here: the log has reached its bound]\n")
		if err != nil || !cut || !strings.HasPrefix(head, "line 1\n") || !strings.HasSuffix(tail, "line 30000\nend\n") {
			t.Errorf("of %d bytes, %d come first: %.100q, %v", len(kept), len(head), kept, err)
		}
	}, "SANDBOXD_PROCESSES_MAX_LOG=65536")
}

// What is there after Docker was told otherwise, or a record was damaged.
func TestProcessesThatSomebodyMeddlesWith(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "meddled")
		removed := l.startProcess(t, "meddled", types.StartProcess{Argv: []string{"sleep", "7331"}})
		spoiled := l.startProcess(t, "meddled", types.StartProcess{Argv: []string{"sleep", "7332"}})
		fine := l.startProcess(t, "meddled", types.StartProcess{Argv: []string{"sleep", "7333"}})
		if err := l.engine.ContainerRemove(context.Background(), "daycare-process-"+removed.ID, container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its end is known", func() bool { return l.process(t, "meddled", removed.ID).Status == types.ProcessExited })
		l.stop(syscall.SIGTERM)
		record := l.path("data/processes/" + spoiled.ID + "/record.json")
		if err := os.Truncate(record, 100); err != nil {
			t.Fatal(err)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if status := l.call(t, http.MethodGet, "meddled/processes/"+spoiled.ID, nil, nil); status != http.StatusNotFound {
			t.Errorf("the damaged one: %d", status)
		}
		eventually(t, "the log tells of the damaged record", func() bool { return strings.Contains(l.log.String(), spoiled.ID+".damaged") })
		if health, err := l.client.Health(t.Context()); err != nil || len(health.Warnings) != 1 || !strings.Contains(health.Warnings[0], spoiled.ID) {
			t.Errorf("health: %+v, %v", health, err)
		}
		if now := l.process(t, "meddled", fine.ID); now.Status != types.ProcessRunning || now.RestartCount != 0 {
			t.Errorf("%+v", now)
		}
		eventually(t, "what nobody knows any more is removed", func() bool { return len(l.processContainers(t)) == 1 })
	})
}

// When Docker is started again its containers are gone, and what is to run comes back.
func TestProcessesOutliveTheEngine(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.place.giveImage(t, "small:latest")
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			l, err := openLab(t, engine.place, append(runtimeSettings(runtime), "SANDBOXD_DOCKER_IMAGE=small"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.close)
			l.register(t, "engine")
			kept := l.startProcess(t, "engine", types.StartProcess{Argv: []string{"sh", "-c", "echo up; sleep 7341"}, KeepAlive: true})
			other := l.startProcess(t, "engine", types.StartProcess{Argv: []string{"sleep", "7342"}})
			prints(t, kept, "up\n")
			engine.stop()
			engine.start(t)
			// Each time that it could not be started makes the next one later, by a minute at most.
			eventuallyWithin(t, 2*time.Minute, "the one that is kept alive runs again", func() bool {
				now := l.process(t, "engine", kept.ID)
				return now.Status == types.ProcessRunning && now.RestartCount > 0 && strings.Count(logOf(t, kept), "up\n") > 1
			})
			eventually(t, "the end of the other is known", func() bool { return l.process(t, "engine", other.ID).Status == types.ProcessExited })
		})
	}
}

// A lack of memory is told apart from a kill.
func TestProcessOutOfMemory(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "oom")
		p := l.startProcess(t, "oom", types.StartProcess{Argv: []string{"python3", "-c", "x = b'x' * (1 << 30); print(len(x))"}})
		eventually(t, "it has ended", func() bool { return l.process(t, "oom", p.ID).Status == types.ProcessExited })
		if now := l.process(t, "oom", p.ID); !now.OOMKilled {
			t.Errorf("%+v, signal %v, log %q", now, now.Signal, logOf(t, p))
		}
	}, "SANDBOXD_LIMITS_MEMORY=256Mi")
}
