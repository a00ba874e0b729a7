package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/cluster"
)

// joins are this host's tries to join the cluster, one for each lease that the fence gets.
type joins struct {
	mu      sync.Mutex // held while a join ends, or lets calls in
	running sync.WaitGroup
	one     sync.Mutex // held while this host joins, before mu
	end     func()     // ends the last join; nil before the first. Only followFence's goroutine has it.
}

// followFence joins the cluster with each lease that the fence gets, until ctx ends.
func (m *Member) followFence(ctx context.Context) {
	defer m.joins.running.Wait()
	m.fence.Run(ctx, leases{m, ctx})
}

// SetServing says that this host's service takes calls from now on: with that it joins the cluster.
func (m *Member) SetServing() { m.fence.SetServing() }

// leases is a Member as the fence sees it. ctx is the life of followFence.
type leases struct {
	*Member
	ctx context.Context
}

// Fenced implements fence.Service.
func (l leases) Fenced() {
	l.endJoin()
	l.cluster.Fenced()
}

// Joined implements fence.Service. The join ends when the lease has passed or there is another.
func (l leases) Joined(lease int64) {
	l.endJoin()
	ctx, cancel := context.WithCancel(l.ctx)
	l.joins.end = func() {
		l.joins.mu.Lock()
		defer l.joins.mu.Unlock()
		cancel()
	}
	l.joins.running.Go(func() { l.join(ctx, lease) })
}

func (l leases) endJoin() {
	if l.joins.end != nil {
		l.joins.end()
	}
}

// Stop implements fence.Service.
func (l leases) Stop(ctx context.Context) { l.router.Stop(ctx) }

// Starting implements fence.Service.
func (l leases) Starting() int { return l.parts.Executor.Starting() }

// join registers this host in the cluster, retrying until it succeeds or ctx ends. It waits for the
// end of an earlier join.
func (m *Member) join(ctx context.Context, lease int64) {
	m.joins.one.Lock()
	defer m.joins.one.Unlock()
	for ctx.Err() == nil {
		err := m.cluster.Join(ctx, lease)
		if err == nil {
			m.joins.mu.Lock()
			defer m.joins.mu.Unlock()
			if ctx.Err() == nil { // otherwise the router may have stopped already
				m.router.Go()
				m.log.Info().Int64("lease", lease).Msg("this host has joined the cluster")
			}
			return
		}
		m.log.Warn().Err(err).Msg("cannot join the cluster yet")
		cluster.Wait(ctx, time.Second)
	}
}

// How often Docker is checked, and after how many failures in a row the host counts as unfit.
const (
	lookAtEngine = 2 * time.Second
	engineTries  = 3
)

// watchEngine marks this host as unfit to keep its users while Docker does not answer.
func (m *Member) watchEngine(ctx context.Context) {
	failed := 0
	for ; ctx.Err() == nil; cluster.Wait(ctx, lookAtEngine) {
		asked, cancel := context.WithTimeout(ctx, lookAtEngine)
		_, err := m.parts.Docker.Ping(asked)
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
func (m *Member) fenceLost(ctx context.Context) {
	if len(m.settings.FenceCommand) == 0 {
		return
	}
	m.cluster.FenceLost(ctx, cluster.Fencing{Limit: fenceCommandLimit, Again: fenceCommandAgain,
		Run: m.fenceOff})
}

// fenceOff runs cluster.fenceCommand for one host while this one has its lease: after that, another
// may do the same.
func (m *Member) fenceOff(ctx context.Context, host string, epoch int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer inBackground(ctx, func(ctx context.Context) {
		for ; ctx.Err() == nil && m.fence.Left() > 0; cluster.Wait(ctx, time.Second/4) {
		}
		cancel()
	})()
	return runFenceCommand(ctx, m.settings.FenceCommand, host, epoch)
}

// runFenceCommand runs a program that is told which host is lost. When ctx ends, it kills the
// program and its children.
func runFenceCommand(ctx context.Context, argv []string, host string, epoch int64) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCE_HOST=" + host,
		"FENCE_EPOCH=" + strconv.FormatInt(epoch, 10)}
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
