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

// How often Docker is checked, and after how many failures in a row the host counts as unfit.
const (
	lookAtEngine = 2 * time.Second
	engineTries  = 3
)

// watchEngine marks this host as unfit to keep its users while Docker does not answer.
func (m *member) watchEngine(ctx context.Context) {
	failed := 0
	for ; ctx.Err() == nil; cluster.Wait(ctx, lookAtEngine) {
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

// How long cluster.fenceCommand may take, and the delay before it is tried again.
const (
	fenceCommandLimit = time.Minute
	fenceCommandAgain = 2 * time.Second
)

// fenceLost runs cluster.fenceCommand for hosts that are lost.
func (m *member) fenceLost(ctx context.Context) {
	if len(m.cfg.FenceCommand) == 0 {
		return
	}
	m.cluster.FenceLost(ctx, cluster.Fencing{Limit: fenceCommandLimit, Again: fenceCommandAgain, Run: func(ctx context.Context, host string, epoch int64) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer inBackground(ctx, func(ctx context.Context) {
			for ; ctx.Err() == nil && m.fence.Left() > 0; cluster.Wait(ctx, time.Second/4) {
			}
			cancel() // if this host's lease ends meanwhile, another host may be doing the same
		})()
		return runFenceCommand(ctx, m.cfg.FenceCommand, host, epoch)
	}})
}

// runFenceCommand runs a program that is told which host is lost. When ctx ends, it kills the program and its children.
func runFenceCommand(ctx context.Context, argv []string, host string, epoch int64) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCE_HOST=" + host, "FENCE_EPOCH=" + strconv.FormatInt(epoch, 10)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // it exited with 0 but left a process behind
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("it had to end: %w", context.Cause(ctx))
	}
	return fmt.Errorf("cluster.fenceCommand failed for host %q: %w: %.500s", host, err, out)
}
