package warm

import (
	"fmt"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/quota"
)

// BenchmarkAmong is what one user costs the service among so many containers, of a user each: it must not depend on them. A
// first call includes the end of the container.
func BenchmarkAmong(b *testing.B) {
	for _, there := range []int{10, 2500} {
		l := newLab(b)
		s := l.serve()
		for i := range there {
			l.run(b, s, fmt.Sprint("user-", i))
		}
		for _, way := range []struct {
			name string
			do   func() error
		}{
			{"a call", func() error {
				_, err := s.Run(b.Context(), l.spec("user-7"), aCommand, discard)
				return err
			}},
			{"a first call", func() error {
				_, err := s.Run(b.Context(), l.spec("new"), aCommand, discard)
				if err == nil {
					err = s.Leave(b.Context(), "new")
				}
				return err
			}},
			{"a file of tmp", func() error {
				_, release, err := s.Tmp(b.Context(), l.spec("user-7"), quota.Token{}, false)
				if err == nil {
					release()
				}
				return err
			}},
			{"a change", func() error {
				s.Changed("user-7", "/x", "/home/x", dockerexec.Modified)
				return nil
			}},
		} {
			b.Run(fmt.Sprintf("%s/%d", way.name, there), func(b *testing.B) {
				for b.Loop() {
					if err := way.do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		s.stop()
	}
}
