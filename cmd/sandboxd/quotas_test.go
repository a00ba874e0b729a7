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
