package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Users come one after the other, at their time, or at once.
func TestShapesInWhichUsersCome(t *testing.T) {
	for _, tt := range []struct {
		space time.Duration
		most  int32         // at a time
		took  time.Duration // in all
	}{{-1, 1, 10 * time.Second}, {200 * time.Millisecond, 5, 2800 * time.Millisecond}, {0, 10, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var now, most atomic.Int32
			var got sample
			begun := time.Now()
			err := come(t.Context(), 10, tt.space, func(int) (time.Duration, error) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second - time.Nanosecond)
				now.Add(-1)
				time.Sleep(time.Nanosecond)
				return time.Second, nil
			}, &got)
			if err != nil || len(got) != 10 || most.Load() != tt.most || time.Since(begun) != tt.took {
				t.Errorf("%v: %v, %d measured, %d at a time, took %v", tt.space, err, len(got), most.Load(), time.Since(begun))
			}
		})
	}
}

func TestOneOfThemThatFails(t *testing.T) {
	why := errors.New("refused")
	var got sample
	err := come(t.Context(), 3, 0, func(i int) (time.Duration, error) {
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
	s := newService(t, &fakeExecutor{})
	if took, err := s.newUser(context.Background(), "new"); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
}

// A service without a pool and frozen containers: the report says what was not measured, and its targets are not met.
func TestCreationWithoutAPool(t *testing.T) {
	c := creation{burst: sample{time.Second, 2 * time.Second, 4 * time.Second}, missed: []string{"create-pool: there is none"}}
	s := createSection(findings{runtimes: []runtimeFindings{{runtime: "runsc", creation: c}, {runtime: "runc", creation: c}}})
	met := map[string]string{}
	for _, v := range s.verdicts {
		met[v.runtime+" "+v.what] = v.word()
	}
	if len(met) != 16 || met["runsc all at once: median ÷ last"] != "met" || met["runsc all at once: the last"] != "met" ||
		met["runc frozen: p50 of the first `true`"] != "**not measured**" || !strings.Contains(s.note, "Not measured under runc: create-pool: there is none.") {
		t.Errorf("%q\n%s", met, s.note)
	}
}
