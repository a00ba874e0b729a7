//go:build linux

package agent

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// twoPipes returns what a bridge has as stdin and stdout, and the other ends.
func twoPipes(t *testing.T) (in, out, to, from *os.File) {
	t.Helper()
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _, _ = in.Close(), out.Close(), to.Close(), from.Close() })
	return in, out, to, from
}

// accepted is a bridge that has come, and both ends of its socket.
func accepted(t *testing.T, come func(path string) (*net.UnixConn, error)) (here, there *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if there, err = come(path); err != nil {
		t.Fatal(err)
	}
	if here, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

func TestABridgeEndsWithWhatItGave(t *testing.T) {
	for name, end := range map[string]func(b bridged, bridge *net.UnixConn){
		"the connection is closed": func(b bridged, _ *net.UnixConn) { _ = b.Close() },
		"the bridge has ended":     func(_ bridged, bridge *net.UnixConn) { _ = bridge.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			in, out, to, from := twoPipes(t)
			here, there := accepted(t, func(path string) (*net.UnixConn, error) { return give(path, int(in.Fd()), int(out.Fd())) })
			_, _ = in.Close(), out.Close() // what the other has are its own
			b, err := take(here)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 3)
			if _, err := b.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(from, got); err != nil || string(got) != "abc" {
				t.Errorf("%q, %v", got, err)
			}
			if _, err := to.WriteString("def"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(b, got); err != nil || string(got) != "def" {
				t.Errorf("%q, %v", got, err)
			}
			end(b, there)
			_ = from.SetReadDeadline(time.Now().Add(timeout))
			if n, err := from.Read(got); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("of what was given, %d bytes, %v", n, err)
			}
			_ = there.SetReadDeadline(time.Now().Add(timeout))
			if _, err := there.Read(got); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("the bridge is told %v", err)
			}
		})
	}
}

func TestABridgeThatGivesSomethingElse(t *testing.T) {
	for name, rights := range map[string]func(in, out int) []byte{
		"nothing":  func(int, int) []byte { return nil },
		"one file": func(in, _ int) []byte { return unix.UnixRights(in) },
	} {
		t.Run(name, func(t *testing.T) {
			in, out, _, from := twoPipes(t)
			here, _ := accepted(t, func(path string) (*net.UnixConn, error) {
				conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
				if err == nil {
					_, _, err = conn.WriteMsgUnix([]byte{0}, rights(int(in.Fd()), int(out.Fd())), nil)
				}
				return conn, err
			})
			_, _ = in.Close(), out.Close()
			if _, err := take(here); err == nil {
				t.Fatal("it was taken")
			}
			_ = from.SetReadDeadline(time.Now().Add(timeout))
			if _, err := from.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("what it gave is kept: %v", err)
			}
		})
	}
}
