package main

import (
	"strings"
	"testing"
)

func TestGrants(t *testing.T) {
	s := newService(t, false)
	found, err := s.measureGrants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.none) != 20 || len(found.workspace) != 20 || len(found.alternating) != 20 || found.cold != 0 {
		t.Errorf("%d, %d, %d calls, %d of them cold", len(found.none), len(found.workspace), len(found.alternating), found.cold)
	}
}

func TestGrantsThatNeverGetWarm(t *testing.T) {
	s := newService(t, true)
	if _, err := s.measureGrants(t.Context()); err == nil || !strings.Contains(err.Error(), "no container") {
		t.Errorf("measureGrants: %v", err)
	}
}
