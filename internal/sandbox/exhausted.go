package sandbox

import (
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hints"
)

// ExhaustedHint tells a caller which limit a command has used up.
func ExhaustedHint(x dockerexec.Exhausted) hints.Hint {
	h := hints.Hint{Kind: hints.OutOfProcesses, Limit: string(x.Limit), Value: x.Amount()}
	if x.Limit == dockerexec.LimitMemory {
		h.Kind = hints.OutOfMemory
	}
	return h
}
