package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Users come one after the other, or at once.
func TestShapesInWhichUsersCome(t *testing.T) {
	for _, tt := range []struct {
		atOnce bool
		most   int           // at a time
		took   time.Duration // in all
	}{{false, 1, 10 * time.Second}, {true, 10, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			now, most := 0, 0
			count := func(more int) {
				mu.Lock()
				defer mu.Unlock()
				now += more
				most = max(most, now)
			}
			var got sample
			begun := time.Now()
			err := come(10, tt.atOnce, func(int) (time.Duration, error) {
				count(1)
				time.Sleep(time.Second - time.Nanosecond)
				count(-1)
				time.Sleep(time.Nanosecond)
				return time.Second, nil
			}, &got)
			if err != nil || len(got) != 10 || most != tt.most || time.Since(begun) != tt.took {
				t.Errorf("at once %t: %v, %d measured, %d at a time, took %v", tt.atOnce, err, len(got), most, time.Since(begun))
			}
		})
	}
}

func TestOneOfThemThatFails(t *testing.T) {
	why := errors.New("refused")
	var got sample
	err := come(3, true, func(i int) (time.Duration, error) {
		if i == 1 {
			return 0, why
		}
		return time.Second, nil
	}, &got)
	if !errors.Is(err, why) || len(got) != 2 {
		t.Errorf("%v, %v", err, got)
	}
}

// A new user's first command is measured with the registration, and the next one finds its container.
func TestNewUser(t *testing.T) {
	s := newService(t, false)
	if took, err := s.newUser(context.Background(), "new", "true"); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
}

// What was not measured meets no target.
func TestCreationWithoutAPool(t *testing.T) {
	c := creation{burst: sample{time.Second, 2 * time.Second, 4 * time.Second}}
	s := createSection(findings{runtimes: []runtimeFindings{{runtime: "runsc", creation: c}, {runtime: "runc", creation: c}}})
	met := map[string]string{}
	for _, v := range s.verdicts {
		met[v.runtime+" "+v.what] = s.word(v)
	}
	if len(met) != 14 || met["runsc all at once: median ÷ last"] != "met" || met["runsc all at once: the last"] != "met" ||
		met["runc frozen: p50 of the first `true`"] != "**not measured**" {
		t.Errorf("%q", met)
	}
}
