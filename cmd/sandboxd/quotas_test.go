package main

import (
	"testing"

	"github.com/daycare-run/sandbox/config"
)

func TestColdStartsGoByTheProcessors(t *testing.T) {
	for _, tt := range []struct{ set, processors, want int }{{0, 1, 2}, {0, 2, 4}, {0, 64, 32}, {1, 2, 1}, {100, 2, 100}} {
		cfg := config.Default()
		cfg.Quotas.Total.ColdStarts = tt.set
		if got := quotas(cfg, tt.processors).Total.ColdStarts; got != tt.want {
			t.Errorf("%d with %d processors: %d at a time, want %d", tt.set, tt.processors, got, tt.want)
		}
	}
}

// Half of the processors are left to calls, and half of the turns.
func TestThePoolIsFilledByTheProcessors(t *testing.T) {
	for _, tt := range []struct{ set, processors, want int }{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 1}, {0, 4, 2}, {0, 8, 4}, {0, 32, 16}, {0, 128, 16}, {1, 8, 1}, {2, 8, 1}, {4, 64, 2}, {100, 8, 4},
	} {
		cfg := config.Default()
		cfg.Quotas.Total.ColdStarts = tt.set
		if got := quotas(cfg, tt.processors).SpareTurns; got != tt.want {
			t.Errorf("%d with %d processors: %d at a time, want %d", tt.set, tt.processors, got, tt.want)
		}
	}
}
