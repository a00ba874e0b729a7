package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/cluster"
)

// Engine is looked at so often, and given up after so many failures.
const (
	lookAtEngine = 2 * time.Second
	engineTries  = 3
)

// watchEngine says that this host cannot keep its users while Docker does not answer.
func (m *member) watchEngine(ctx context.Context) {
	failed := 0
	for ; ctx.Err() == nil; sleep(ctx, lookAtEngine) {
		asked, cancel := context.WithTimeout(ctx, lookAtEngine)
		_, err := m.d.docker.Ping(asked)
		cancel()
		switch {
		case err == nil:
			failed = 0
			m.fence.SetUnfit("")
		case ctx.Err() == nil:
			if failed++; failed >= engineTries {
				m.fence.SetUnfit("Docker does not answer")
			}
		}
	}
}

// How long cluster.fenceCommand may take, and when it is tried again.
const (
	fenceCommandLimit = time.Minute
	fenceCommandAgain = 2 * time.Second
)

// fenceLost runs cluster.fenceCommand on hosts that are lost.
func (m *member) fenceLost(ctx context.Context) {
	if len(m.cfg.FenceCommand) == 0 {
		return
	}
	m.cluster.FenceLost(ctx, cluster.Fencing{Limit: fenceCommandLimit, Again: fenceCommandAgain, Run: func(ctx context.Context, host string, epoch int64) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer inBackground(ctx, func(ctx context.Context) {
			for ; ctx.Err() == nil && m.fence.Left() > 0; sleep(ctx, time.Second/4) {
			}
			cancel() // or another does the same when this host's lease has ended
		})()
		return runFenceCommand(ctx, m.cfg.FenceCommand, host, epoch)
	}})
}

// runFenceCommand tells a program which host is lost, and ends it and what it has started with ctx.
func runFenceCommand(ctx context.Context, argv []string, host string, epoch int64) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCE_HOST=" + host, "FENCE_EPOCH=" + strconv.FormatInt(epoch, 10)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it has exited with 0, and left something behind
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it had to end: %w", context.Cause(ctx))
	}
	return fmt.Errorf("cluster.fenceCommand failed for host %q: %w: %.500s", host, err, out)
}
