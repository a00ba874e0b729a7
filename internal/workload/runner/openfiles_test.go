package runner

import (
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// A tenant's list is taken for what it is: of what is below the home, and can be printed.
func TestNamesInHome(t *testing.T) {
	host := func(name string) pathmap.HostPath {
		path, err := pathmap.ParseHost(name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	inHome, err := pathmap.ParseContainer("/home/mnt")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := pathmap.New(pathmap.Mount{Host: host("/users/a/home"), Container: policy.Home}, pathmap.Mount{Host: host("/srv/x"), Container: inHome})
	if err != nil {
		t.Fatal(err)
	}
	text := "/home/app.db\x00/home/a b/x.lock\x00/home\x00/home/\x00/home/../etc/lock\x00/etc/lock\x00relative\x00\x00/home/mnt/app.db\x00" +
		"/home/new\nline\x00/home/\xff\x00/home/\x1b[2J\x00/home/\u202e\x00/home/wéb.db\x00/home/cut"
	if got := namesInHome(paths, text); !slices.Equal(got, []string{"app.db", "a b/x.lock", "wéb.db"}) {
		t.Errorf("%q", got)
	}
	if got := namesInHome(paths, ""); got != nil {
		t.Errorf("%q", got)
	}
}
