package hostfs_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// newSecrets is a lab with denied files that have other names, in a directory that is closed to the owner.
func newSecrets(t *testing.T) *lab {
	l := newLab(t, ".ssh", "conf/token", "missing", "nothing")
	l.file(".ssh/keys/id", "secret")
	l.file(".ssh/known_hosts", "single")
	l.file("conf/token", "token")
	l.file("plain", "plain")
	l.symlink("plain", "nothing")
	for _, link := range [][2]string{
		{".ssh/keys/id", "alias"}, {"conf/token", "alias2"}, {"plain", "plain2"}, {"alias", "conf/alias3"},
	} {
		must(t, os.Link(l.at(link[0]), l.at(link[1])))
	}
	if l.serviceIsRoot {
		must(t, os.Chown(l.at(".ssh"), 0, 0))
	}
	must(t, os.Chmod(l.at(".ssh"), 0o700))
	return l
}

func TestOtherNamesOfDeniedFilesAreRefused(t *testing.T) {
	l := newSecrets(t)
	tests := []struct{ name, says string }{
		{"alias", `"alias" is another name of ".ssh/keys/id"`},
		{"conf/alias3", `"conf/alias3" is another name of ".ssh/keys/id"`},
		{"alias2", `"alias2" is another name of "conf/token"`},
	}
	for _, tt := range tests {
		_, err := l.read(tt.name)
		l.refused(err, errdefs.ErrPermissionDenied, tt.says)
		l.refused(l.write(tt.name, hostfs.Append, "x"), errdefs.ErrPermissionDenied, tt.says)
		l.refused(l.root.Move(tt.name, "moved", true), errdefs.ErrPermissionDenied, tt.says)
	}
	for _, name := range []string{"plain", "plain2"} {
		if got, err := l.read(name); err != nil || got != "plain" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	must(t, l.write("alias", hostfs.Replace, "mine"))
	l.holds("alias", "mine")
	l.holds(".ssh/keys/id", "secret")
	must(t, l.root.Remove("alias2", false))
	l.holds("conf/token", "token")
}

func TestTooManyDeniedFilesToCheck(t *testing.T) {
	l := newSecrets(t)
	for i := range 20_001 {
		must(t, os.WriteFile(l.at(fmt.Sprint(".ssh/", i)), nil, 0o600))
	}
	_, err := l.read("plain")
	l.refused(err, errdefs.ErrPermissionDenied, "too many entries")
	if ids, err := l.root.DeniedLinks(); err != nil || len(ids) != 2 {
		t.Errorf("DeniedLinks: %v, %v", ids, err)
	}
}

func TestFindNames(t *testing.T) {
	l := newSecrets(t)
	ids, err := l.root.DeniedLinks()
	must(t, err)
	if len(ids) != 2 || !slices.IsSortedFunc(ids, func(a, b hostfs.ID) int { return int(a.Ino) - int(b.Ino) }) {
		t.Errorf("DeniedLinks: %v", ids)
	}
	names, err := l.root.FindNames(ids, 3)
	if err != nil || !slices.Equal(names, []string{"alias", "alias2", "conf/alias3"}) {
		t.Errorf("FindNames: %q, %v", names, err)
	}
	_, err = l.root.FindNames(ids, 2)
	l.refused(err, errdefs.ErrPermissionDenied, "more than 2 other names")
	if names, err := l.root.FindNames(nil, 2); err != nil || len(names) != 0 {
		t.Errorf("FindNames of nothing: %q, %v", names, err)
	}
}
