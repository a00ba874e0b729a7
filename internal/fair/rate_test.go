package fair

import (
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	const interval, burst = 100 * time.Millisecond, time.Second
	var r Rate
	takes := func(at time.Duration) (n int) {
		for r.Take(int64(at), interval, burst) {
			n++
		}
		return n
	}
	for _, tt := range []struct {
		at   time.Duration
		want int
	}{{0, 10}, {99 * time.Millisecond, 0}, {100 * time.Millisecond, 1}, {450 * time.Millisecond, 3}, {time.Hour, 10}} {
		if got := takes(tt.at); got != tt.want {
			t.Errorf("at %v: %d, want %d", tt.at, got, tt.want)
		}
	}
	if r.Rested(int64(time.Hour)) || !r.Rested(int64(time.Hour+burst)) {
		t.Error("it has not rested when all of it is back")
	}
}
