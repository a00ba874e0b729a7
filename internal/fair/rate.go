package fair

import (
	"sync/atomic"
	"time"
)

// Rate bounds how often something happens. It has no lock: it holds the time at which all of it
// will be there again, as in the generic cell rate algorithm. The zero value has all of it.
type Rate struct{ full atomic.Int64 }

// Take reports whether it may happen now, in nanoseconds of a clock that begins at 0 or later and
// is not set back. It may happen once in each interval; what was not used in a burst's time may be
// used at once.
func (r *Rate) Take(now int64, interval, burst time.Duration) bool {
	for {
		full := r.full.Load()
		next := max(full, now) + int64(interval)
		if next-now > int64(burst) {
			return false
		}
		if r.full.CompareAndSwap(full, next) {
			return true
		}
	}
}

// Rested reports whether all of it is there, as in a new one.
func (r *Rate) Rested(now int64) bool { return r.full.Load() <= now }
