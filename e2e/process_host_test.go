package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// otherBoot is the boot id of a host that was restarted.
const otherBoot = "0b7e51de-0000-4000-8000-000000000001"

// reboot has sandboxd, when it is started next, see another boot id: in a mount namespace of its own, to which
// what Docker mounts is passed on.
func (l *lab) reboot(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(l.path("boot_id"), []byte(otherBoot+"\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	l.wrap = []string{"unshare", "--mount", "--propagation", "slave", "sh", "-c", `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, l.path("boot_id")}
}

// After a restart of the host nothing that is there is taken for what ran before, whatever it looks like. What is
// kept alive comes back, with its network.
func TestProcessesOutliveTheHost(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "reboot")
		name := w.name(t, "reboot", w.shared)
		kept := l.startProcess(t, "reboot", types.StartProcess{
			KeepAlive: true, Permissions: []string{"@network"}, AllowedDomains: []string{name},
			Command: hello("http://"+name) + "; sleep 7351",
		})
		once := l.startProcess(t, "reboot", types.StartProcess{Argv: []string{"sleep", "7352"}})
		killed := l.startProcess(t, "reboot", types.StartProcess{Argv: []string{"sleep", "7353"}})
		prints(t, kept, "hello from "+name)
		l.stop(syscall.SIGTERM)
		if err := l.engine.ContainerKill(t.Context(), "daycare-process-"+killed.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		before := map[string]string{} // states
		eventually(t, "it is dead, and the others run", func() bool {
			states := map[string]int{}
			for _, c := range l.processContainers(t) {
				before[c.ID] = c.State
				states[c.State]++
			}
			return states[container.StateRunning] == 2 && states[container.StateExited] == 1
		})

		l.reboot(t)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		var now types.Process
		eventually(t, "the one that is kept alive runs again", func() bool {
			now = l.process(t, "reboot", kept.ID)
			return now.Status == types.ProcessRunning && now.RestartCount == 1
		})
		if now.PID == nil || *now.PID == *kept.PID || !now.LastStartedAt.After(kept.LastStartedAt) || now.LastExitedAt.IsZero() || now.ExitCode != nil || now.Signal != nil || now.Reason != "" {
			t.Errorf("it was %+v, it is %+v", kept, now)
		}
		eventually(t, "the log tells of its end", func() bool {
			return strings.Contains(l.logged("process ended", kept.ID), `"reason":"the host was restarted"`)
		})
		if record := holds(l.path("data/processes/" + kept.ID + "/record.json")); !strings.Contains(record, otherBoot) {
			t.Errorf("its record does not say which start of the host it runs on: %s", record)
		}
		eventually(t, "its network is back", func() bool { return strings.Count(logOf(t, kept), "hello from "+name) == 2 })
		eventually(t, "nothing is left of the others", func() bool { return len(l.processContainers(t)) == 1 })
		if left := l.processContainers(t)[0]; before[left.ID] != "" || left.State != container.StateRunning {
			t.Errorf("the containers were %v, and now there is %+v", before, left)
		}
		if now := l.process(t, "reboot", once.ID); now.Status != types.ProcessExited || now.Reason != "the host was restarted" || now.PID != nil ||
			now.ExitCode != nil || now.Signal != nil || now.RestartCount != 0 || now.LastExitedAt.IsZero() {
			t.Errorf("without keepAlive: %+v", now)
		}
		// How one has ended whose container is still there is known.
		if now := l.process(t, "reboot", killed.ID); now.Status != types.ProcessExited || now.Signal == nil || *now.Signal != "SIGKILL" || now.PID != nil {
			t.Errorf("the one that was killed meanwhile: %+v", now)
		}

		// This service sees Docker's mounts, as any other does.
		l.sh(t, "reboot", "echo here > /tmp/file")
		if got, err := l.client.Read(t.Context(), "reboot", types.Read{Target: client.Target("/tmp/file")}); err != nil || got.Content != "here\n" {
			t.Errorf("/tmp: %+v, %v", got, err)
		}
	})
}

// logged is the last line of sandboxd's log with these texts.
func (l *lab) logged(texts ...string) (found string) {
next:
	for line := range strings.Lines(l.log.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		found = line
	}
	return found
}

// smallDisk gives a user a disk of so many MiB, of which one is free; more makes room for all.
func (l *lab) smallDisk(t *testing.T, user string, size int) (more func()) {
	t.Helper()
	dir := l.path("users/" + user)
	mkdir(t, dir)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0755", size)); err != nil { // the lab unmounts it
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/filler", make([]byte, (size-1)<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(dir + "/filler"); err != nil {
			t.Fatal(err)
		}
	}
}

// full says that not a block is free on the disk of a directory.
func full(t *testing.T, dir string) bool {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail == 0
}

// counted is what seq prints, of so many numbers.
func counted(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(strconv.Itoa(i+1) + "\n")
	}
	return text.String()
}

// A full disk ends nobody: what cannot be written to a log is lost, counted, and told when there is room again.
func TestProcessesOnAFullDisk(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		more := l.smallDisk(t, "full", 4)
		l.register(t, "full")
		l.sh(t, "full", "true") // has what it needs before there is no room
		wait := func(name string) string { return "while [ ! -e /tmp/" + name + " ]; do sleep 0.05; done; " }
		tell := func(name string) { l.sh(t, "full", "touch /tmp/"+name) }
		const many, few = 300_000, 500 // 2 MB, and less than a block
		start := func(command string) types.Process {
			return l.startProcess(t, "full", types.StartProcess{Command: command, KeepAlive: strings.HasSuffix(command, "exit 5")})
		}
		goesOn := start(wait("print") + fmt.Sprintf("seq %d; touch /tmp/printed; %s echo after; exit 7", many, wait("room")))
		ends := start(wait("end") + fmt.Sprintf("seq %d; exit 3", few))
		returns := start(wait("crash") + "seq 5000; exit 5")
		stops := start("trap 'exit 4' TERM; touch /tmp/waits; " + wait("never"))
		eventually(t, "one waits for its end", func() bool { return l.there("full", "/tmp/waits") })
		tell("print")
		eventually(t, "one goes on on a full disk", func() bool { return full(t, l.path("users/full")) && l.there("full", "/tmp/printed") })

		if one, err := l.client.StartProcess(t.Context(), "full", types.StartProcess{Command: "true"}); err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("one more: %+v, %v", one, err)
		}
		if list, err := l.client.Processes(t.Context(), "full"); err != nil || len(list) != 4 || len(l.processContainers(t)) != 4 {
			t.Errorf("there are %+v, %v", list, err)
		}
		tell("end")
		var now types.Process
		eventually(t, "one ends", func() bool { now = l.process(t, "full", ends.ID); return now.Status == types.ProcessExited })
		if now.ExitCode == nil || *now.ExitCode != 3 || now.LostBytes != uint64(len(counted(few))) || logOf(t, ends) != "" {
			t.Errorf("%+v, log %q", now, logOf(t, ends))
		}
		if out, err := l.cli("process", "get", "--sandbox", "full", ends.ID).Output(); err != nil || !strings.Contains(string(out), fmt.Sprintf("%d bytes of output could not be written", len(counted(few)))) {
			t.Errorf("%v, %s", err, out)
		}
		if now, err := l.client.StopProcess(t.Context(), "full", stops.ID, ""); err != nil || now.Status != types.ProcessStopped || now.ExitCode == nil || *now.ExitCode != 4 {
			t.Errorf("%+v, %v", now, err)
		}
		tell("crash")
		eventually(t, "one ends that is kept alive", func() bool { now = l.process(t, "full", returns.ID); return now.Status == types.ProcessExited })
		first := now.LostBytes
		eventually(t, "it was started again, and has lost more", func() bool {
			now = l.process(t, "full", returns.ID)
			return now.LostBytes > first && now.Status == types.ProcessExited // while it runs again, it has no exit code
		})
		if first == 0 || now.RestartCount == 0 || now.ExitCode == nil || *now.ExitCode != 5 {
			t.Errorf("%d bytes lost at first, %+v", first, now)
		}
		if now = l.process(t, "full", goesOn.ID); now.Status != types.ProcessRunning || now.RestartCount != 0 {
			t.Errorf("%+v", now)
		}

		more()
		tell("room")
		eventually(t, "the other ends", func() bool { now = l.process(t, "full", goesOn.ID); return now.Status == types.ProcessExited })
		if now.ExitCode == nil || *now.ExitCode != 7 {
			t.Errorf("%+v", now)
		}
		checkLoss(t, logOf(t, goesOn), counted(many)+"after\n", now.LostBytes)
	}, "SANDBOXD_PROCESSES_STOP_GRACE_MS=60000") // one ends by itself when it is told to
}

// there says whether a user's file is there, as the service sees it.
func (l *lab) there(user, path string) bool {
	_, err := l.client.Stat(context.Background(), user, path)
	return err == nil
}

var lossNote = regexp.MustCompile(`\[sandbox: (\d+) bytes of output were lost: no space left on device\]\n`)

// checkLoss makes sure that a log is all that was printed but for one loss, of which it tells.
func checkLoss(t *testing.T, log, printed string, lost uint64) {
	t.Helper()
	notes := lossNote.FindAllStringSubmatchIndex(log, -1)
	if len(notes) != 1 {
		t.Fatalf("%d notes in a log of %d bytes, which ends in %q", len(notes), len(log), log[max(0, len(log)-200):])
	}
	note := notes[0]
	before, after, told := log[:note[0]], log[note[1]:], log[note[2]:note[3]]
	if !strings.HasPrefix(printed, before) || len(before)+len(after)+int(lost) != len(printed) {
		before = strings.TrimSuffix(before, "\n") // the note's, which was not to begin in a line
	}
	if !strings.HasPrefix(printed, before) || !strings.HasSuffix(printed, after) || len(before)+len(after)+int(lost) != len(printed) || told != fmt.Sprint(lost) {
		t.Errorf("of %d bytes %d are there before the loss and %d after it; %d are counted, and %s told", len(printed), len(before), len(after), lost, told)
	}
}
