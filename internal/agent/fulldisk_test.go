package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestALogThatCannotBe(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link":      func(path string) error { return os.Symlink(path+".elsewhere", path) },
		"a directory": func(path string) error { return os.MkdirAll(path+"/x", 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log := filepath.Join(dir, launch.LogFile)
			if err := errors.Join(make(log), os.WriteFile(log+".elsewhere", []byte("untouched"), 0o600)); err != nil {
				t.Fatal(err)
			}
			_, code, s := run(t, dir, shell("head -c 12345 /dev/zero; exit 4"))
			if code != 4 || s.Lost != 12345 {
				t.Errorf("exit code %d, state %+v", code, s)
			}
			if data, err := os.ReadFile(log + ".elsewhere"); string(data) != "untouched" {
				t.Errorf("the other file has %q, %v", data, err)
			}
		})
	}
	t.Run("a pipe that is read", func(t *testing.T) {
		dir := t.TempDir()
		log := filepath.Join(dir, launch.LogFile)
		if err := unix.Mkfifo(log, 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(log, os.O_RDWR, 0) // holds both ends, so that opening does not fail
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if _, code, s := run(t, dir, shell("head -c 1000000 /dev/zero")); code != 0 || s.Lost != 1000000 {
			t.Errorf("exit code %d, state %+v", code, s)
		}
	})
}

// fill prints, waits until the bytes have been taken, says so, and prints again when told.
func fill(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	// A byte more is read only when those before it have been dealt with.
	for _, text := range []string{strings.Repeat("x", n), "x"} {
		if _, err := os.Stdout.WriteString(text); err != nil {
			return err
		}
		held := 0
		taken := func() bool { held, err = unix.IoctlGetInt(1, unix.TIOCINQ); return held == 0 || err != nil }
		if !waittest.Comes(taken) || err != nil {
			return fmt.Errorf("the agent leaves %d bytes: %w", held, err)
		}
	}
	if err := os.WriteFile("filled", nil, 0o600); err != nil {
		return err
	}
	waittest.Comes(func() bool { return exists("go") })
	_, err = os.Stdout.WriteString("after\n")
	return err
}

func TestAFullDisk(t *testing.T) {
	const printed, filler = 400_000, 128 << 10
	disk := tmpfs(t, "256k")
	dir, cwd := fmt.Sprintf("/proc/self/fd/%d", disk.Fd()), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, filler), 0o600); err != nil {
		t.Fatal(err)
	}
	l := program(os.Args[0])
	l.Cwd, l.Env = cwd, []string{fmt.Sprintf("%s=%d", envFill, printed-1)}
	p := begin(t, dir, l, []*os.File{disk})
	p.orders(launch.Order{Begin: true})
	p.until("the disk is full", func() bool { return exists(filepath.Join(cwd, "filled")) })
	if err := errors.Join(os.Remove(filepath.Join(dir, "filler")), os.WriteFile(filepath.Join(cwd, "go"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	code, s := p.end()
	log := p.log()
	kept := int64(strings.Count(log[:strings.IndexByte(log, '\n')], "x"))
	want := fmt.Sprintf("\n[sandbox: %d bytes of output were lost: no space left on device]\n", s.Lost)
	if code != 0 || s.Lost < filler || !strings.Contains(log, want) || !strings.HasSuffix(log, "after\n") || kept+s.Lost > printed || kept+s.Lost < printed-1 {
		t.Errorf("exit code %d, state %+v, %d bytes kept, the log ends with %q", code, s, kept, log[max(0, len(log)-200):])
	}
}

// On a disk that stays full to the end, the state is recorded all the same.
func TestADiskThatStaysFull(t *testing.T) {
	disk := tmpfs(t, "64k")
	p := begin(t, fmt.Sprintf("/proc/self/fd/%d", disk.Fd()), shell("head -c 300000 /dev/zero; exit 8"), []*os.File{disk})
	p.orders(launch.Order{Begin: true})
	if code, s := p.end(); code != 8 || s.ExitCode != 8 || s.Lost+int64(len(p.log())) != 300000 || s.Lost < 300000-64<<10 {
		t.Errorf("exit code %d, state %+v, %d bytes logged", code, s, len(p.log()))
	}
}

// States can be replaced on a disk that is filled up whenever it has room.
func TestStatesOnAFullDisk(t *testing.T) {
	dir := fmt.Sprintf("/proc/self/fd/%d", tmpfs(t, "64k").Fd())
	states, err := newStateFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for pid, fault := range []string{"", "", strings.Repeat("x", 100), "", strings.Repeat("x", 200), ""} {
		want := launch.State{Version: launch.Version, PID: pid, Fault: fault}
		if err := states.write(want, pid == 5); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, launch.StateFile))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := launch.ParseState(data); err != nil || got != want {
			t.Errorf("%v, %q, want %+v", err, data, want)
		}
		for err == nil {
			_, err = filler.Write([]byte("x"))
		}
	}
	if exists(states.next) {
		t.Error("the next file is left")
	}
}

// A disk on which there was room for nothing but launch.json, as for a process that is started again.
func TestADiskThatIsFullFromTheStart(t *testing.T) {
	disk := tmpfs(t, "64k")
	dir := fmt.Sprintf("/proc/self/fd/%d", disk.Fd())
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 64<<10-os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := begin(t, dir, shell("head -c 5000 /dev/zero; exit 8"), []*os.File{disk})
	p.orders(launch.Order{Begin: true})
	if code, s := p.end(); code != 8 || s.ExitCode != 8 || s.Lost != 5000 || p.log() != "" {
		t.Errorf("exit code %d, state %+v, %d bytes logged", code, s, len(p.log()))
	}
}

// tmpfs is a small disk that is mounted nowhere: it is reached by its descriptor.
func tmpfs(t *testing.T, size string) *os.File {
	t.Helper()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatalf("this test has to make a small disk, and needs root: %v", err)
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "size", size), unix.FsconfigSetString(fs, "mode", "0700"), unix.FsconfigCreate(fs)); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk := os.NewFile(uintptr(mount), "tmpfs")
	t.Cleanup(func() { _ = disk.Close() })
	return disk
}
