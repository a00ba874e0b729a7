package main

import (
	"context"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// Only interrupts that come in a row cut the connection: a command may run for hours.
func TestInterruptsInARow(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   []time.Duration
		cut  bool // by the last one, and by no earlier one
	}{
		{"one", []time.Duration{0}, false},
		{"two", []time.Duration{0, time.Second}, false},
		{"three", []time.Duration{0, time.Second, 10 * time.Second}, true},
		{"three, apart", []time.Duration{0, time.Second, time.Minute}, false},
		{"three after one", []time.Duration{0, time.Minute, time.Minute, time.Minute}, true},
	} {
		var row interrupts
		for i, at := range tt.at {
			want := tt.cut && i == len(tt.at)-1
			if got := row.cut(time.Unix(1_000_000, 0).Add(at)); got != want {
				t.Errorf("%s: interrupt %d cuts: %v", tt.name, i, got)
			}
		}
	}
}

// What a caller sends us is the command's.
func TestSignalsAreTheCommands(t *testing.T) {
	l := newLab(t, sandboxtest.Started(func(ctx context.Context, c warm.Command,
		out session.Output) (warm.Result, error) {
		_ = out(session.Stdout, []byte("ready\n"))
		select {
		case got := <-c.Signals:
			return warm.Result{Result: session.Result{ExitCode: 40 + int(got)}}, nil
		case <-ctx.Done():
			return warm.Result{}, context.Cause(ctx)
		}
	}))
	l.mkdir("project")
	settings := filepath.Join(t.TempDir(), "settings.json")
	writeFile(t, settings, "{}")
	for _, args := range [][]string{
		{"exec", "--user", "alice", "--", "x"}, {"--settings", settings, "--", "x"},
	} {
		for _, sent := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT,
			unix.SIGUSR1, unix.SIGUSR2} {
			cmd := l.command(args...)
			cmd.Dir = l.host("project")
			stdout, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Process.Signal(sent)
			late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			late.Stop()
			if code := cmd.ProcessState.ExitCode(); code != 40+int(sent) {
				t.Errorf("%s, %s: %v", args[0], sent, cmd.ProcessState)
			}
		}
	}
}
