package process

import "time"

// A process that is kept alive is started again after a delay. The delay doubles each time the
// process ends soon, and starts over after a stable run.
const (
	backoffFirst = 2 * time.Second
	maxBackoff   = time.Minute
	stableAfter  = 30 * time.Second
)

// restartsAtOnce bounds concurrent restarts after a host was lost, or was away, and restartsOfUser
// those of one user.
const (
	restartsAtOnce = 4
	restartsOfUser = restartsAtOnce - 1
)

// backoffNext returns the delay that follows last; 0 means that there was none.
func backoffNext(last time.Duration) time.Duration {
	return min(max(2*last, backoffFirst), maxBackoff)
}

// waitToRestart plans the next start.
func (r *Record) waitToRestart(now time.Time) {
	delay := backoffNext(time.Duration(r.BackoffMs) * time.Millisecond)
	r.BackoffMs = delay.Milliseconds()
	r.NextRestartAt = now.Add(delay)
}

// restartDelay returns how long to wait until the next start. A clock that was set back while the
// service was away does not make it longer than maxBackoff.
func (r *Record) restartDelay(now time.Time) time.Duration {
	return min(max(r.NextRestartAt.Sub(now), 0), maxBackoff)
}
