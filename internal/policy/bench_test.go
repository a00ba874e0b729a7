package policy_test

import (
	"fmt"
	"testing"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// large is a sandbox with 20 further mounts, and a call with 50 tags.
func large(tb testing.TB) (policy.Subject, policy.Grants) {
	s := all(agent(tb, "/home/ws", ""))
	s.HasSkills = true
	s.WriteDirs = paths(tb, "/home/projects")
	tags := []string{"@network", "@workspace"}
	for i := range 20 {
		target := path(tb, fmt.Sprintf("/mnt/data%02d", i))
		s.Mounts = append(s.Mounts, policy.Mount{Target: target, ReadOnly: i%2 == 0})
		s.ReadDirs = append(s.ReadDirs, target)
		tags = append(tags, "@read:"+target.String())
	}
	for i := range 28 {
		tags = append(tags, fmt.Sprintf("@write:/home/projects/project-%02d/build", i))
	}
	grants, err := policy.ParseTags(tags, pathmap.Map{})
	if err != nil || len(tags) != 50 || s.Check() != nil {
		tb.Fatal(err, len(tags), s.Check())
	}
	return s, grants
}

// BenchmarkDecide is what policy has of the 50 us that deciding a view may take.
func BenchmarkDecide(b *testing.B) {
	s, grants := large(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Decide(grants); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecideNothing is a call without tags.
func BenchmarkDecideNothing(b *testing.B) {
	s, _ := large(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Decide(policy.Grants{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHeld is what each file call takes.
func BenchmarkHeld(b *testing.B) {
	s, _ := large(b)
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Held()
	}
}
