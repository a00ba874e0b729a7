package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkPlan is what a call pays before its container is asked: policy, the look at the home, and
// the fingerprint.
func BenchmarkPlan(b *testing.B) {
	for _, tt := range []struct {
		name string
		tags []string
	}{
		{"no grants", nil},
		{"workspace", []string{"@workspace"}},
		{"a directory", []string{"@write:/home/out"}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s := newService(b, nil, "")
			for b.Loop() {
				p := planFor(b, s, Confinement{Permissions: tt.tags})
				p.Spec.Fingerprint()
			}
		})
	}
}

// BenchmarkView is a decision about many mounts and tags, with its fingerprint.
func BenchmarkView(b *testing.B) {
	s := newService(b, nil, "")
	r := Registration{UserID: "alice"}
	var tags []string
	s.allowMounts(nil, "/")
	shared := b.TempDir()
	for i := range 20 {
		name := fmt.Sprintf("d%d", i)
		if err := os.MkdirAll(filepath.Join(shared, name), 0o755); err != nil {
			b.Fatal(err)
		}
		r.Mounts = append(r.Mounts, MountRequest{Source: filepath.Join(shared, name), Target: "/mnt/" + name})
		r.ReadDirs = append(r.ReadDirs, "/mnt/"+name)
		tags = append(tags, "@read:/mnt/"+name)
	}
	for i := range 30 {
		tags = append(tags, fmt.Sprintf("@write:/home/a/%d", i))
	}
	if _, _, err := s.Put("agent", r); err != nil {
		b.Fatal(err)
	}
	p := planFor(b, s, Confinement{Permissions: tags})
	b.Run("fingerprint", func(b *testing.B) {
		for b.Loop() {
			p.Spec.Fingerprint()
		}
	})
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			planFor(b, s, Confinement{Permissions: tags})
		}
	})
}
