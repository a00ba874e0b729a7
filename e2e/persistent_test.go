package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

func TestPersistentSandbox(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, _ func() *keeper) {
		b := k.make(t)
		begun := time.Now()
		runIn(t, b, "true")
		t.Logf("first command in %v", time.Since(begun))
		begun = time.Now()
		for range 20 {
			runIn(t, b, "true")
		}
		t.Logf("a command in %v", time.Since(begun)/20)
		for text, want := range map[string]string{
			"id -un; echo $HOME ~user; pwd; stat -c %U ~": "user\n/home/user /home/user\n/home/user\nuser\n[0 0 false]",
			"echo $GIVEN $USER; exit 7":                   "by create user\n[7 0 false]",
			"grep -c ' / .*[ ,]rw' /proc/mounts":          "1\n[0 0 false]",
			"ls /.daycare/run; ls /proc/1/fd":             "[2 0 false]",
			"kill -9 1; echo on":                          "on\n[0 0 false]",
			knowsItself:                                   itself("0") + "\n[0 0 false]",
			"cat":                                         "[0 0 false]",
		} {
			if got := runIn(t, b, "exec 2>/dev/null; "+text); got != want {
				t.Errorf("%s: %q, want %q", text, got, want)
			}
		}
		// Others have no such sandbox.
		if _, err := k.Find(quota.Token{Name: "another"}, b.ID()); !cerrdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		// Files go through what all sandboxes have.
		if _, err := k.files.Write(t.Context(), b.ID(), files.WriteRequest{Path: "/home/user/f", Body: strings.NewReader("text")}); err != nil {
			t.Error(err)
		}
		if got := runIn(t, b, "cat f"); got != "text[0 0 false]" {
			t.Errorf("%q", got)
		}
		if _, err := k.files.Write(t.Context(), b.ID(), files.WriteRequest{Path: "/tmp/f", Body: strings.NewReader("of tmp")}); err != nil {
			t.Error(err)
		}
		if got := runIn(t, b, "cat /tmp/f"); got != "of tmp[0 0 false]" {
			t.Errorf("%q", got)
		}
		// A port of the container's own loopback, without a network.
		follow(t, b, "exec python3 -m http.server --bind 127.0.0.1 8123", func(c *persistent.Command) { c.Tag = "server" })
		eventually(t, "the port answers", func() bool {
			conn, err := b.Dial(t.Context(), 8123)
			if err != nil {
				return false
			}
			defer conn.Close()
			_, err = io.WriteString(conn, "GET /f HTTP/1.0\r\n\r\n")
			answer, _ := io.ReadAll(conn)
			return err == nil && strings.HasSuffix(string(answer), "text")
		})
		if err := b.Signal(t.Context(), persistent.Selector{Tag: "server"}, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		eventually(t, "nothing runs", func() bool { list, err := b.Commands(t.Context()); return err == nil && len(list) == 0 })
		if m, err := b.Metrics(t.Context()); err != nil || m.Memory <= 0 || m.MemoryLimit != 512<<20 || m.CPUPercent <= 0 || m.Disk <= 0 || m.DiskTotal <= m.Disk {
			t.Errorf("%+v, %v", m, err)
		}
		// Two who follow, input by pieces, and a tag.
		first := follow(t, b, "read a; echo $a; cat; echo over", func(c *persistent.Command) { c.Stdin, c.Tag = true, "tagged" })
		second, err := b.Follow(t.Context(), persistent.Selector{Tag: "tagged"})
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.Commands(t.Context())
		if err != nil || len(list) != 1 || list[0].PID != first.PID() || list[0].Argv[0] != "/bin/bash" || list[0].Cwd != "/home/user" || list[0].Tag != "tagged" {
			t.Errorf("%+v, %v", list, err)
		}
		which := persistent.Selector{PID: first.PID()}
		for _, text := range []string{"one\n", "two ", "three\n"} {
			if err := b.Input(t.Context(), which, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		if err := b.CloseInput(t.Context(), which); err != nil {
			t.Error(err)
		}
		for _, r := range []*persistent.Reader{first, second} {
			if got := until(t, r, ""); got != "one\ntwo three\nover\n[0 0 false]" {
				t.Errorf("%q", got)
			}
		}
		terminal := follow(t, b, "stty size; tty; read x; stty size", func(c *persistent.Command) { c.Terminal = &specs.Box{Height: 20, Width: 70} })
		until(t, terminal, "/dev/pts")
		which = persistent.Selector{PID: terminal.PID()}
		if err := b.Resize(t.Context(), which, specs.Box{Height: 30, Width: 90}); err != nil {
			t.Error(err)
		}
		if err := b.Input(t.Context(), which, []byte("\n")); err != nil {
			t.Error(err)
		}
		if got := until(t, terminal, ""); !strings.Contains(got, "30 90") {
			t.Errorf("%q", got)
		}
		// A command's time is that of all below it.
		timed := follow(t, b, "sleep 7931 & sleep 7932", func(c *persistent.Command) { c.Timeout = 500 * time.Millisecond })
		if got := until(t, timed, ""); got != "[0 9 true]" {
			t.Errorf("%q", got)
		}
		eventually(t, "nothing is left of what has timed out", func() bool { return runIn(t, b, "pgrep -fc 'sleep 793[12]'") == "0\n[1 0 false]" })
		for _, c := range []persistent.Command{{Argv: []string{"no-such-program"}}, {Argv: []string{"true"}, Cwd: "/nowhere"}, {Argv: []string{"true"}, User: "else"}, {}} {
			if _, err := b.Start(t.Context(), c); !cerrdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}

func TestPersistentOverARestart(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, again func() *keeper) {
		b := k.make(t)
		counter := follow(t, b, "i=0; while :; do echo $((i++)); sleep 0.05; done", func(c *persistent.Command) { c.Tag = "counter" })
		until(t, counter, "\n3\n")
		ended := follow(t, b, "until [ -e go ]; do sleep 0.1; done; echo late; exit 5", func(c *persistent.Command) { c.Tag = "late" })
		if got := runIn(t, b, "nohup bash -c 'sleep 1; echo kept > kept; exec sleep 7933' > /dev/null 2>&1 & echo left"); got != "left\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		pid := counter.PID()
		k.end()
		if _, err := ended.Next(t.Context()); !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		k = again()
		b, err := k.Find(quota.Token{Name: "owner"}, b.ID())
		if err != nil {
			t.Fatal(err)
		}
		runIn(t, b, "touch go") // nobody follows it any more
		eventually(t, "what was left behind goes on", func() bool {
			return runIn(t, b, "cat kept 2>/dev/null; pgrep -fc 'sleep 7933'") == "kept\n1\n[0 0 false]"
		})
		r, err := b.Follow(t.Context(), persistent.Selector{Tag: "late"})
		if err != nil {
			t.Fatal(err)
		}
		if got := until(t, r, ""); got != "late\n[5 0 false]" {
			t.Errorf("%q", got)
		}
		r, err = b.Follow(t.Context(), persistent.Selector{PID: pid})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got := until(t, r, "0\n")
		lines := strings.Fields(got)
		var from, to int
		_, _ = fmt.Sscan(lines[0], &from)
		_, _ = fmt.Sscan(lines[len(lines)-1], &to)
		if len(lines) != to-from+1 {
			t.Errorf("%d lines from %d to %d", len(lines), from, to)
		}
		// Paused, it stands still, also over a restart.
		if err := b.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Pause(t.Context()); !cerrdefs.IsConflict(err) {
			t.Errorf("%v", err)
		}
		k.end()
		k = again()
		if b, err = k.Find(quota.Token{Name: "owner"}, b.ID()); err != nil || b.Info().State != persistent.StatePaused {
			t.Fatalf("%+v, %v", b.Info(), err)
		}
		if _, err := b.Commands(t.Context()); !cerrdefs.IsFailedPrecondition(err) {
			t.Errorf("%v", err)
		}
		if err := b.Connect(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if list, err := b.Commands(t.Context()); err != nil || len(list) != 1 || list[0].PID != pid {
			t.Errorf("%+v, %v", list, err)
		}
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"users/" + b.ID(), "data/lasting/" + b.ID() + ".json", "data/sandboxes/" + b.ID() + ".json"} {
			if _, err := os.Lstat(filepath.Join(k.dir, name)); !os.IsNotExist(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestPersistentDeadlines(t *testing.T) {
	eachKeeper(t, func(t *testing.T, k *keeper, again func() *keeper) {
		soon := func(c *persistent.Create) { c.Deadline = time.Now().Add(8 * time.Second) }
		killed := k.make(t, soon)
		paused := k.make(t, soon, func(c *persistent.Create) { c.OnDeadline, c.AutoResume = persistent.Pause, true })
		k.end()
		k = again()
		eventually(t, "the one is gone", func() bool { _, err := k.Any(killed.ID()); return cerrdefs.IsNotFound(err) })
		b, err := k.Any(paused.ID())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other one is paused", func() bool { return b.Info().State == persistent.StatePaused })
		if got := runIn(t, b, "echo on"); got != "on\n[0 0 false]" {
			t.Errorf("%q", got)
		}
		// One that is lost has ended, and goes.
		var found []dockerexec.ProcessContainer
		eventually(t, "the other one's container is gone", func() bool {
			found, err = k.executor.Persistent(t.Context())
			return err == nil && len(found) == 1
		})
		if err := k.docker.ContainerKill(t.Context(), found[0].ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has ended", func() bool { return b.Info().State == persistent.StateEnded })
		if _, err := b.Commands(t.Context()); !cerrdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		eventually(t, "it is gone", func() bool { _, err := k.Any(b.ID()); return cerrdefs.IsNotFound(err) })
	})
}
