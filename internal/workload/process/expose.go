package process

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
)

// What is visible of a process from outside: whether it is ready, and its ports.

// Ready says how to tell that a process is ready for its work, and Readiness whether it is.
type (
	Ready     = launch.Ready
	Readiness = launch.Readiness
)

// Defaults and bounds of a Ready, in milliseconds, and of its Command, in bytes.
const (
	defaultReadyInterval = 500
	defaultReadyTimeout  = 2000
	minReadyTime         = 100
	maxReadyTime         = 60_000
	maxReadyCommand      = 64 << 10
)

// checkReady returns the Ready with its defaults filled in, or what is wrong with it.
func checkReady(r Ready) (Ready, error) {
	r.IntervalMs, r.TimeoutMs = cmp.Or(r.IntervalMs, defaultReadyInterval),
		cmp.Or(r.TimeoutMs, defaultReadyTimeout)
	switch {
	case r.Command == "" && r.Port == 0:
		return r, errs.Invalid("ready has neither command nor port")
	case r.Command != "" && r.Port != 0:
		return r, errs.Invalid("ready.command and ready.port exclude each other")
	case r.Port == 0 && strings.TrimSpace(r.Command) == "":
		return r, errs.Invalid("ready.command is blank")
	case len(r.Command) > maxReadyCommand:
		return r, errs.Invalid("ready.command has %d bytes, more than %d", len(r.Command),
			maxReadyCommand)
	case strings.ContainsRune(r.Command, 0):
		return r, errs.Invalid("ready.command has a NUL byte")
	case r.Port < 0 || r.Port > 65535:
		return r, errs.Invalid("ready.port %d is not between 1 and 65535", r.Port)
	case r.IntervalMs < minReadyTime || r.IntervalMs > maxReadyTime:
		return r, errs.Invalid("ready.intervalMs %d is not between %d and %d", r.IntervalMs,
			minReadyTime, maxReadyTime)
	case r.TimeoutMs < minReadyTime || r.TimeoutMs > maxReadyTime:
		return r, errs.Invalid("ready.timeoutMs %d is not between %d and %d", r.TimeoutMs,
			minReadyTime, maxReadyTime)
	}
	return r, nil
}

// observed returns the current record with the process's readiness and ports. It reads what the
// process reports.
func (p *process) observed() Record {
	r := p.shown()
	if r.Ready != nil && r.Status == Running {
		r.Readiness = p.of.cfg.Runner.Readiness(r)
	}
	if r.Expose != nil {
		r.Expose = p.of.cfg.Ports.Ports(p.id) // none when it has finished
	}
	return r
}

// expose opens the ports of a process that is to start; the turn is held.
func (p *process) expose() error {
	opened, err := p.of.cfg.Ports.Open(p.record.UserID, p.id, p.record.Expose, p.dialer())
	if err != nil {
		return err
	}
	r := p.record
	r.Expose = opened
	p.show(r, "")
	return nil
}

// dialer returns a Dial for a process's ports, in whichever container it runs at that time.
func (p *process) dialer() Dial {
	return func(ctx context.Context, port int) (Conn, error) {
		p.of.mu.Lock()
		r, i := p.record, p.instance()
		p.of.mu.Unlock()
		if r.Status != Running {
			return nil, fmt.Errorf("process %s does not run", p.id)
		}
		if p.of.paused(r) {
			return nil, fmt.Errorf("process %s is paused with its sandbox", p.id)
		}
		return p.of.cfg.Runner.Dial(ctx, i, port)
	}
}
