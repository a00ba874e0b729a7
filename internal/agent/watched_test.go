//go:build linux

package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// heard are the events of a watch, as "mask name".
func heard(t *testing.T, fd int, want ...string) {
	t.Helper()
	var got []string
	buffer := make([]byte, 4<<10)
	for {
		n, err := unix.Read(fd, buffer)
		if err != nil {
			break
		}
		for data := buffer[:n]; len(data) > 0; {
			size := int(binary.NativeEndian.Uint32(data[12:]))
			mask := map[uint32]string{unix.IN_ATTRIB: "attrib", unix.IN_ATTRIB | unix.IN_ISDIR: "attrib", unix.IN_MODIFY: "modify"}[binary.NativeEndian.Uint32(data[4:])]
			got = append(got, strings.TrimSpace(mask+" "+string(bytes.TrimRight(data[16:16+size], "\x00"))))
			data = data[16+size:]
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
}

// Who watches hears of each path, and nothing has changed.
func TestChangesAreNudged(t *testing.T) {
	dir := t.TempDir()
	file, sub, link := filepath.Join(dir, "file"), filepath.Join(dir, "sub"), filepath.Join(dir, "link")
	old := time.Date(2020, 1, 2, 3, 4, 5, 600, time.UTC)
	for _, err := range []error{os.WriteFile(file, []byte("content"), 0o640), os.Mkdir(sub, 0o710), os.Symlink("file", link), os.Chtimes(file, old, old)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ATTRIB|unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE); err != nil {
		t.Fatal(err)
	}
	nudge([]string{file, sub, link}, nil)
	heard(t, fd, "attrib file", "attrib sub")
	nudge([]string{file}, []string{file, sub, link})
	heard(t, fd, "attrib file", "modify file", "attrib sub")
	nudge([]string{filepath.Join(dir, "gone")}, nil)
	heard(t, fd, "attrib")
	nudge([]string{filepath.Join(dir, "gone", "below"), dir + "\x00"}, nil)
	heard(t, fd)
	for path, mode := range map[string]os.FileMode{file: 0o640, sub: 0o710 | os.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) || info.Size() != 7 {
		t.Errorf("%v, %v", info, err)
	}
}

// Who watches a file hears that another one has its name, also where that is all that happens.
func TestReplacedFilesAreHeard(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"now", "next"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o700), os.WriteFile(filepath.Join(dir, name, "file"), nil, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, "now/file"), unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	awaitReplaced(uint32(os.Getuid()), filepath.Join(dir, "now/file"))
	awaitReplaced(uint32(os.Getuid()), filepath.Join(dir, "now/none"))
	if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "now"), unix.AT_FDCWD, filepath.Join(dir, "next"), unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000); err != nil {
		t.Fatal(err)
	}
	event := make([]byte, 64)
	if n, err := unix.Read(fd, event); err != nil || n != 16 || binary.NativeEndian.Uint32(event[4:]) != unix.IN_ATTRIB {
		t.Errorf("%v, %v", event[:max(n, 0)], err)
	}
	if info, err := os.Stat(filepath.Join(dir, "next/file")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}

// What fdinfo says is as gVisor says it.
func TestMarkOfADescriptor(t *testing.T) {
	for info, want := range map[string]string{
		"pos:\t0\nflags:\t02004000\nmnt_id:\t1\n": "0 1",
		"pos:\t0\nflags:\t02004002\nmnt_id:\t1\n": "2 1",
		"pos:\t0\nflags:\t0100000\nmnt_id:\t18\n": "0 18",
		"flags:\t9\nmnt_id:\t1\n":                 "",
		"":                                        "",
	} {
		if got := markOf([]byte(info)); got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if !watches("/proc/self/fdinfo/", inotifyMark()) {
		t.Error("an inotify descriptor is not found")
	}
	if watches("/proc/self/fdinfo/", "0 none") || watches("/proc/none/", inotifyMark()) {
		t.Error("one is found where there is none")
	}
}
