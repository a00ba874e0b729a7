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

// Half of the processors are left to calls.
func TestThePoolIsFilledByTheProcessors(t *testing.T) {
	for processors, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 8: 4, 32: 16, 128: 16} {
		if got := quotas(config.Default(), processors).SpareTurns; got != want {
			t.Errorf("%d processors: %d at a time, want %d", processors, got, want)
		}
	}
}
