//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// TestMissingPathsAreMade makes what a tenant lacks in a directory of the owner's, and nothing else.
func TestMissingPathsAreMade(t *testing.T) {
	root := t.TempDir()
	owner := uint32(os.Getuid())
	tenant := owner
	if owner == 0 {
		tenant = 12345
	}
	for _, err := range []error{
		os.Mkdir(root+"/opt", 0o755), os.WriteFile(root+"/file", nil, 0o600), os.Symlink("opt", root+"/link"), os.Symlink("none", root+"/dangling"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := maker{root, owner, tenant}
	for _, tt := range []struct {
		at   string
		dir  bool
		made string // what of it is made; empty for nothing
	}{
		{"/workspace", true, "/workspace"}, {"/workspace", true, ""}, {"/app/src/main.py", false, "/app"}, {"/opt/tool/bin", true, "/opt/tool"},
		{"/opt/file", false, "/opt/file"}, {"/opt", true, ""}, {"/", true, ""}, {"/file", false, ""}, {"/file/x", false, ""},
		{"/link/x", false, ""}, {"/dangling", false, ""}, {"/dangling/x", true, ""},
	} {
		err := m.make(tt.at, tt.dir)
		if tt.made == "" {
			continue // it may be an error; below, nothing more is there
		}
		info, statErr := os.Lstat(root + tt.made)
		if err != nil || statErr != nil {
			t.Errorf("%s: %v, %v", tt.at, err, statErr)
			continue
		}
		isDir := tt.dir || tt.made != tt.at
		mode := map[bool]os.FileMode{false: 0o644, true: os.ModeDir | 0o755}[isDir]
		if info.Mode() != mode || info.Sys().(*syscall.Stat_t).Uid != tenant {
			t.Errorf("%s: %v of %d", tt.made, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
	}
	var there []string
	if err := filepath.Walk(root, func(name string, _ os.FileInfo, err error) error {
		there = append(there, name[len(root):])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{"", "/app", "/dangling", "/file", "/link", "/opt", "/opt/file", "/opt/tool", "/workspace"}
	if slices.Sort(there); !slices.Equal(there, want) {
		t.Errorf("there is %q", there)
	}
}

// TestNothingIsMadeForOthers is for directories that are not the owner's, or are mounted, and paths that are not clean.
func TestNothingIsMadeForOthers(t *testing.T) {
	for _, asked := range []*control.Make{nil, {}, {Path: "x"}, {Path: "/opt/../x"}, {Path: "/proc/x", Dir: true}} {
		if a := (&persistent{uid: uint32(os.Getuid())}).make(asked); a.Fault == wire.FaultNone {
			t.Errorf("%+v was made", asked)
		}
	}
	root := t.TempDir()
	uid := uint32(os.Getuid())
	if err := (maker{root, uid + 1, uid}).make("/x", true); err == nil {
		t.Error("it was made in a directory of another's")
	}
	if err := (maker{"/", uid, uid}).make("/proc/x", true); err == nil {
		t.Error("it was made on another mount")
	}
	parent, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	slash, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer slash.Close()
	proc, err1 := mountOf(int(parent.Fd()))
	top, err2 := mountOf(int(slash.Fd()))
	if err1 != nil || err2 != nil || proc == top {
		t.Errorf("%v %v: %v, %v", proc, top, err1, err2)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("%v %v", entries, err)
	}
}
