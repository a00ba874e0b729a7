// Package warm runs the commands of calls in containers that it keeps for the next call with the
// same Spec. It decides when a container is made, and which one makes room for it (admit.go), what
// happens to idle ones (idle.go), what waits in a pool for future users (pool.go), and what is made
// ahead of calls (ahead.go). What a container is, and its state, are dockerexec's.
package warm

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what a Runner needs.
type Config struct {
	// Idle says what happens to containers in which nothing runs, until SetIdle changes it.
	Idle Idle
	// Quotas bound how many containers there may be, and how many are made at a time; nil for no
	// bounds. They must be the Executor's.
	Quotas *quota.Ledger
	// Events gets Incidents of calls; nil for none.
	Events *events.Stream
}

// Runner runs commands, and has the containers that are there for calls. It is safe for concurrent
// use.
type Runner struct {
	cfg      Config
	executor *dockerexec.Executor

	stopping context.Context // ends with EndCommands, and commands with it
	stop     context.CancelCauseFunc

	idle    atomic.Pointer[Idle]
	freezes struct{ frozen, thawed atomic.Uint64 }
	usages  usages

	mu      sync.Mutex
	warming map[string]int // by user, how many containers are on their way that Warm asked for
	// claimed are containers of which each makes room for another one.
	claimed map[*dockerexec.Container]bool
	// stocked are the pooled containers, with the class of the users who may have them.
	stocked map[*dockerexec.Container]string
}

// New returns a Runner of commands in an Executor's containers. Its work in the background ends
// with the Executor's Shutdown, before which EndCommands must be called.
func New(executor *dockerexec.Executor, cfg Config) *Runner {
	r := &Runner{
		cfg: cfg, executor: executor,
		usages: usages{turn: make(chan struct{}, 1)}, warming: map[string]int{},
		claimed: map[*dockerexec.Container]bool{}, stocked: map[*dockerexec.Container]string{},
	}
	r.SetIdle(cfg.Idle)
	r.stopping, r.stop = context.WithCancelCause(context.Background())
	return r
}

// Start freezes and removes idle containers, until the Executor's Shutdown.
func (r *Runner) Start() { r.executor.Go(r.tendIdle) }
