package hostfs_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

func TestRead(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"notes.txt", "a/b/c", "not UTF-8 \xff\xfe", "new\nline"} {
		l.file(name, "content of "+name)
		got, err := l.read(name)
		if err != nil || got != "content of "+name {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	f, info, err := l.root.OpenFile("a/b/c")
	must(t, err)
	defer f.Close()
	if info.Size != int64(len("content of a/b/c")) || time.Since(info.ModTime) > time.Minute {
		t.Errorf("size %d, time %v", info.Size, info.ModTime)
	}
	part := make([]byte, 2)
	if _, err := f.ReadAt(part, 8); err != nil || string(part) != "of" {
		t.Errorf("ReadAt: %q, %v", part, err)
	}
	if at, err := f.Seek(-1, io.SeekEnd); err != nil || at != info.Size-1 {
		t.Errorf("Seek: %d, %v", at, err)
	}
}

// awkward makes what is no regular file, or is not reached without a link. What reads, appends and
// replaces must refuse each in the same way.
func awkward(l *lab) {
	l.t.Helper()
	must(l.t, os.WriteFile(l.outside+"/canary", []byte("canary"), 0o666))
	l.file("file", "content")
	l.mkdir("dir")
	l.symlink("file", "link")
	l.symlink(l.outside+"/canary", "way-out")
	l.symlink("../outside", "dirlink")
	l.symlink("/proc/self/root", "magic")
	l.symlink("nowhere", "dangling")
	l.symlink("loop", "loop")
	l.mkdir("deep")
	l.symlink("../dirlink", "deep/link")
	l.symlink("file", "chain0")
	for i := range 40 {
		l.symlink(fmt.Sprint("chain", i), fmt.Sprint("chain", i+1))
	}
	must(l.t, unix.Mkfifo(l.at("fifo"), 0o666))
	must(l.t, os.Chmod(l.at("fifo"), 0o666))
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.at("socket"), Net: "unix"})
	must(l.t, err)
	l.t.Cleanup(func() { _ = socket.Close() })
	if l.serviceIsRoot {
		must(l.t, unix.Mknod(l.at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(l.t, os.Chmod(l.at("null"), 0o666))
	}
}

var refusals = []struct {
	name  string
	class error
	says  string
}{
	{"dir", errdefs.ErrInvalidArgument, `"dir" is a directory`},
	{"file/x", errdefs.ErrInvalidArgument, `"file" is not a directory`},
	{"link", errdefs.ErrPermissionDenied, `"link" is a symbolic link`},
	{"way-out", errdefs.ErrPermissionDenied, `"way-out" is a symbolic link`},
	{"dangling", errdefs.ErrPermissionDenied, `"dangling" is a symbolic link`},
	{"loop", errdefs.ErrPermissionDenied, `"loop" is a symbolic link`},
	{"chain40", errdefs.ErrPermissionDenied, `"chain40" is a symbolic link`},
	{"dirlink/canary", errdefs.ErrPermissionDenied, `"dirlink" is a symbolic link`},
	{"deep/link/canary", errdefs.ErrPermissionDenied, `"deep/link" is a symbolic link`},
	{"magic/etc/passwd", errdefs.ErrPermissionDenied, `"magic" is a symbolic link`},
	{"fifo", errdefs.ErrInvalidArgument, `"fifo" is a FIFO, not a regular file`},
	{"socket", errdefs.ErrInvalidArgument, `"socket" is a socket, not a regular file`},
	{"null", errdefs.ErrInvalidArgument, `"null" is a device, not a regular file`},
	{"file/.", errdefs.ErrInvalidArgument, "not clean"},
	{"dir/../file", errdefs.ErrInvalidArgument, "not clean"},
	{"../outside/canary", errdefs.ErrInvalidArgument, "out of the root"},
	{"/etc/passwd", errdefs.ErrInvalidArgument, "not relative"},
	{strings.Repeat("x", 256), errdefs.ErrInvalidArgument, "too long"},
}

// waits is more than a busy machine takes for what does not wait, and less than the kernel delays
// whoever waits for a lease.
const waits = 20 * time.Second

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	l := newLab(t)
	l.needsRoot()
	awkward(l)
	for _, tt := range refusals {
		start := time.Now()
		_, err := l.read(tt.name)
		l.refused(err, tt.class, tt.says)
		for _, how := range []hostfs.CreateMode{hostfs.Replace, hostfs.Append} {
			l.refused(l.write(tt.name, how, "x"), tt.class, tt.says)
		}
		if took := time.Since(start); took > waits {
			t.Errorf("%q took %v", tt.name, took)
		}
	}
	_, err := l.read("missing")
	l.refused(err, errdefs.ErrNotFound, `"missing" does not exist`)
	_, err = l.read("dir/missing/x")
	l.refused(err, errdefs.ErrNotFound, `"dir/missing/x" does not exist`)
	l.holds("file", "content")
	l.holds("../outside/canary", "canary")
	l.has(l.outside, "canary")
}

// TestLeaseDoesNotDelay: the owner of a file can hold a lease, with which
// the kernel delays whoever opens it by 45 seconds.
func TestLeaseDoesNotDelay(t *testing.T) {
	l := newLab(t)
	l.file("f", "x")
	holder, err := os.OpenFile(l.at("f"), os.O_RDWR, 0)
	must(t, err)
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("no leases here: %v", err)
	}
	start := time.Now()
	_, err = l.read("f")
	l.refused(err, errdefs.ErrConflict, "lease")
	if took := time.Since(start); took > waits {
		t.Errorf("it took %v", took)
	}
}

func TestFileGrowsAndShrinksWhileItIsRead(t *testing.T) {
	l := newLab(t)
	l.file("f", strings.Repeat("a", 1<<16))
	stop := make(chan struct{})
	var changer sync.WaitGroup
	changer.Go(func() {
		for size := int64(0); ; size = (size + 7919) % (1 << 18) {
			select {
			case <-stop:
				return
			default:
				if err := os.Truncate(l.at("f"), size); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 500 {
		got, err := l.read("f")
		if err != nil || len(got) > 1<<18 || strings.Trim(got, "a\x00") != "" {
			t.Errorf("%d bytes, %v", len(got), err)
			break
		}
	}
	close(stop)
	changer.Wait()
}

func BenchmarkOpenRead1K(b *testing.B) {
	l := newLab(b)
	l.file("a/b/notes.txt", strings.Repeat("x", 1024))
	buffer := make([]byte, 2048)
	for b.Loop() {
		f, _, err := l.root.OpenFile("a/b/notes.txt")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.ReadFull(f, buffer); n != 1024 || err != io.ErrUnexpectedEOF {
			b.Fatal(n, err)
		}
		_ = f.Close()
	}
}
