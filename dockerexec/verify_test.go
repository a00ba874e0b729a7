package dockerexec

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Another service may give the same directory an access time of its own at any moment.
func TestVerifyBesideAnotherService(t *testing.T) {
	meant, other := t.TempDir(), t.TempDir()
	stat := func(name string) (st unix.Stat_t) {
		if err := unix.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	id := stat(meant)
	c := &container{spec: Spec{Mounts: []Mount{{Source: meant, Target: "/mnt/tools", ID: FileID{Dev: uint64(id.Dev), Ino: id.Ino}, Verify: true}}}}
	var e Executor
	at := func(name string) string { st := stat(name); return fmt.Sprintf("%d.%09d", st.Atim.Sec, st.Atim.Nsec) }
	looks := 0
	for _, tt := range []struct {
		disturbed int    // how often another service is between
		mounted   string // what the container has
		want      string
	}{
		{0, meant, ""},
		{verifyTries - 1, meant, ""},
		{0, other, "/mnt/tools is not what was meant"},
	} {
		looks = 0
		err := e.verify(c, func([]string) ([]string, error) {
			if looks++; looks <= tt.disturbed {
				if err := os.Chtimes(meant, time.Now().Add(3*time.Hour), time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			return []string{at(tt.mounted)}, nil
		})
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: %v", tt, err)
		}
		if after := stat(meant).Atim.Sec; after > time.Now().Unix() {
			t.Errorf("%+v: an access time of %d is left", tt, after)
		}
	}
	if looks != verifyTries {
		t.Errorf("what was exchanged was looked at %d times", looks)
	}
}
