package dockerexec

import (
	"maps"
	"sync"
)

// Changes are what has happened since they were received last.
type Changes struct {
	// Ended are the processes whose containers have ended or are gone. It may be wrong.
	Ended map[string]bool
	// Compared says that everything was compared with Docker anew: until then, ends may have been
	// missed, and other images may have come.
	Compared bool
}

// changes gathers Changes until they are received. Nothing that is told blocks or is lost.
type changes struct {
	mu   sync.Mutex
	told chan Changes // holds those that were not received yet; only tell sends
}

func (c *changes) tell(what Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case before := <-c.told:
		what.Compared = what.Compared || before.Compared
		if what.Ended == nil {
			what.Ended = before.Ended
		} else {
			maps.Copy(what.Ended, before.Ended)
		}
	default:
	}
	c.told <- what
}

// Changes returns what the Executor tells of containers, for one receiver. Changes that are not
// received become one.
func (e *Executor) Changes() <-chan Changes { return e.changes.told }
