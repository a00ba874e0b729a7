package sandbox

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func denial(name string) decisions.Decision {
	return decisions.Decision{Container: "c", Name: name, Via: decisions.DNS, Verdict: decisions.Denied, Reason: "x"}
}

func TestRefusalsAreToldAsTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, nil, "")
		cfg := *s.cfg()
		cfg.Decisions = decisions.New(10)
		s.Use(cfg)
		var told []string
		r := s.refusals("c", func(line decisions.Summary) { told = append(told, line.Name) })
		s.cfg().Decisions.Add(denial("early.org"))
		synctest.Wait()
		if len(told) > 0 {
			t.Errorf("told before the start: %v", told)
		}
		r.start(t.Context())
		synctest.Wait()
		s.cfg().Decisions.Add(denial("a.org"))
		s.cfg().Decisions.Add(denial("a.org"))
		synctest.Wait()
		if want := []string{"early.org", "a.org"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		s.cfg().Decisions.Add(denial("last.org"))
		lines, more := r.end()
		if want := []string{"early.org", "a.org", "last.org"}; !slices.Equal(told, want) || len(lines) != 3 || lines[1].Count != 2 || more != 0 {
			t.Errorf("told %v, then %+v and %d", told, lines, more)
		}
		if lines, _ := r.end(); lines != nil {
			t.Errorf("again: %+v", lines)
		}
	})
}

func TestNobodyToTell(t *testing.T) {
	s := newService(t, nil, "")
	cfg := *s.cfg()
	cfg.Decisions = decisions.New(10)
	s.Use(cfg)
	r := s.refusals("c", nil)
	r.start(t.Context())
	s.cfg().Decisions.Add(denial("a.org"))
	if lines, _ := r.end(); len(lines) != 1 {
		t.Errorf("%+v", lines)
	}
	var none *refusals
	none.start(t.Context())
	if lines, more := none.end(); lines != nil || more != 0 {
		t.Errorf("%+v %d", lines, more)
	}
}
