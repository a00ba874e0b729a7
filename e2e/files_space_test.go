package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// heldFile is a file of the host. The test keeps it open, so that its number is not given to another file, and is no holder.
type heldFile struct {
	name string
	ino  uint64
	dev  uint64
	own  *os.File
}

// fill makes a large file in a user's home or /tmp, as a command of the user's would.
func (l *lab) fill(t *testing.T, user, name string) heldFile {
	t.Helper()
	l.sh(t, user, fmt.Sprintf("mkdir -p $(dirname %[1]s) && head -c 8M /dev/zero > %[1]s", name))
	onHost := l.at(user, strings.TrimPrefix(name, "/home/"))
	if below, is := strings.CutPrefix(name, "/tmp/"); is {
		volume, err := l.engine.VolumeInspect(t.Context(), l.volumes()[0])
		if err != nil {
			t.Fatal(err)
		}
		onHost = filepath.Join(volume.Mountpoint, below)
	}
	own, err := os.Open(onHost)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	info, err := own.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return heldFile{name: name, ino: st.Ino, dev: uint64(st.Dev), own: own}
}

// holders lists the processes of this host, other than the test, that have a file open.
func (f heldFile) holders() (processes []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range all {
		process := filepath.Dir(filepath.Dir(fd))
		var st syscall.Stat_t
		if filepath.Base(process) == fmt.Sprint(os.Getpid()) || syscall.Stat(fd, &st) != nil || st.Ino != f.ino || uint64(st.Dev) != f.dev {
			continue
		}
		if !slices.Contains(processes, process) {
			processes = append(processes, process)
		}
	}
	return processes
}

// kernels counts gVisor's kernels among the holders. The processes in which it runs programs share its files, and have no arguments.
func (f heldFile) kernels() (n int) {
	for _, process := range f.holders() {
		if arguments, err := os.ReadFile(process + "/cmdline"); err == nil && len(arguments) > 0 {
			n++
		}
	}
	return n
}

// isReleased waits until nobody has a file open.
func (f heldFile) isReleased(t *testing.T, when string) {
	t.Helper()
	eventually(t, fmt.Sprintf("nobody holds %s %s", f.name, when), func() bool { return len(f.holders()) == 0 })
}

// Under gVisor a container's kernel holds what it has looked up. What the service removes, replaces or moves away is released by the
// containers of calls and of processes, so that its space is free.
func TestTheSpaceOfWhatIsRemovedIsFree(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "space"
		l.register(t, user)
		look := func(path string) {
			l.sh(t, user, "cat "+path+" > /dev/null")
			if out := l.run(t, user, differently(1, "cat "+path+" > /dev/null")); out.Failed {
				t.Fatalf("%+v", out)
			}
			process := l.startProcess(t, user, types.StartProcess{Command: "cat " + path + " > /dev/null; echo read; sleep 1000"})
			prints(t, process, "read")
		}
		ctx := t.Context()
		for _, tt := range []struct {
			what, path string
			do         func(path string) error
		}{
			{"removed", "/home/big", func(path string) error { return l.client.Remove(ctx, user, path, false) }},
			{"removed with its directory", "/home/dir/below/big", func(string) error { return l.client.Remove(ctx, user, "~/dir", true) }},
			{"removed from /tmp", "/tmp/big", func(path string) error { return l.client.Remove(ctx, user, path, false) }},
			{"replaced", "/home/written", func(path string) error { l.write(t, user, path, "short"); return nil }},
			{"replaced by a move", "/home/target", func(path string) error {
				l.write(t, user, "~/source", "short")
				return l.client.Move(ctx, user, "~/source", path, true)
			}},
			{"moved and then removed", "/home/away", func(path string) error {
				if err := l.client.Move(ctx, user, path, "~/elsewhere", false); err != nil {
					return err
				}
				return l.client.Remove(ctx, user, "~/elsewhere", false)
			}},
		} {
			file := l.fill(t, user, tt.path)
			look(tt.path)
			if l.runtime() == "runsc" && len(file.holders()) == 0 {
				t.Fatalf("%s: nobody holds it, so this shows nothing", tt.what)
			}
			if err := tt.do(tt.path); err != nil {
				t.Fatal(err)
			}
			file.isReleased(t, tt.what)
		}
	})
}

// A frozen container is thawed for that, and frozen again. One that was paused on request stays so, and releases the file when it
// is resumed.
func TestTheSpaceOfWhatFrozenContainersHold(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "coldspace"
		l.register(t, user)
		file := l.fill(t, user, "/home/big")
		l.sh(t, user, "cat /home/big > /dev/null")
		id := l.frozen(t, user)
		if err := l.client.Remove(t.Context(), user, "~/big", false); err != nil {
			t.Fatal(err)
		}
		file.isReleased(t, "in a frozen container")
		if again := l.frozen(t, user); again != id {
			t.Errorf("it is another container")
		}
		l.warmly(t, user)

		file = l.fill(t, user, "/home/more")
		process := l.startProcess(t, user, types.StartProcess{Command: "cat more > /dev/null; echo read; sleep 1000"})
		prints(t, process, "read")
		if _, err := l.client.Pause(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		if err := l.client.Remove(t.Context(), user, "~/more", false); err != nil {
			t.Fatal(err)
		}
		if l.runtime() == "runsc" {
			eventually(t, "only the paused process's container holds it", func() bool { return file.kernels() == 1 })
		}
		if list := l.processContainersOf(t, user); len(list) != 1 || !strings.Contains(list[0].Status, "Paused") {
			t.Errorf("it was thawed: %+v", list)
		}
		if _, err := l.client.Resume(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		file.isReleased(t, "in the process's container")
	}, freezesSoon)
}
