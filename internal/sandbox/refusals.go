package sandbox

import (
	"context"
	"sync"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// refusals collects what one call tried to reach and could not, and reports it as it happens if
// there is a listener. It is nil for a call without a network.
type refusals struct {
	tally *decisions.Tally
	tell  func(decisions.Summary) // nil if nothing is to be told
	told  int
	stop  context.CancelFunc // of the watch; nil before it
	watch sync.WaitGroup
}

func (s *Service) refusals(container string, tell func(decisions.Summary)) *refusals {
	return &refusals{tally: s.cfg().Decisions.Tally(container), tell: tell}
}

// start is called when the command starts: nothing is reported before that.
func (r *refusals) start(ctx context.Context) {
	if r == nil || r.tell == nil {
		return
	}
	ctx, r.stop = context.WithCancel(ctx)
	r.watch.Go(func() {
		for {
			lines, err := r.tally.Next(ctx)
			if err != nil {
				return
			}
			for _, line := range lines {
				r.tell(line)
			}
			r.told += len(lines)
		}
	})
}

// end returns the lines, and how many further names there were. Called again, it returns nothing.
func (r *refusals) end() (lines []decisions.Summary, more int) {
	if r == nil {
		return nil, 0
	}
	if r.stop != nil {
		r.stop()
		r.watch.Wait()
	}
	lines, more = r.tally.End()
	if r.stop != nil && r.told < len(lines) {
		for _, line := range lines[r.told:] {
			r.tell(line)
		}
	}
	return lines, more
}
