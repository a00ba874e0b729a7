package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// odd is a name that is not UTF-8, and that means something in a query.
const odd = "caf\xe9 & co+%41?#"

func TestFileCallsDoWhatWasMeant(t *testing.T) {
	l := newLab(t, nil)
	path := l.File(odd, "1\n2\n3\n4\n5\n")
	home := filepath.Dir(path)
	c, ctx, two, one := l.dial(t), t.Context(), 2, 1
	read, readErr := c.Read(ctx, "a", types.Read{Target: client.Target(odd), Offset: &two, Limit: &one})
	raw, rawErr := c.Read(ctx, "a", types.Read{Target: client.Target("/home/" + odd), Raw: true})
	written, writeErr := c.Write(ctx, "a", types.Write{Target: client.Target("~/a"), Content: "é"})
	more, moreErr := c.Write(ctx, "a", types.Write{Target: client.Target("~/a"), Content: "é", Append: true})
	_, twiceErr := c.Write(ctx, "a", types.Write{Target: client.Target("~/a"), Exclusive: true})
	stat, statErr := c.Stat(ctx, "a", odd)
	explained, explainErr := c.Explain(ctx, "a", types.Explain{Permissions: []string{"@workspace"}, Home: "/tmp"})
	if err := errors.Join(readErr, rawErr, writeErr, moreErr, statErr, explainErr, c.Mkdir(ctx, "a", "~/dir/"+odd, true),
		c.Move(ctx, "a", "~/a", "/home/dir/a", false), c.Move(ctx, "a", "~/"+odd, "~/dir/a", true), c.Remove(ctx, "a", "~/dir/"+odd, true)); err != nil {
		t.Fatal(err)
	}
	if read.Lines == nil || read.TotalLines != 5 || *read.TruncatedBy != "lines" || !strings.HasPrefix(read.Content, "2\n") || raw.Content != "1\n2\n3\n4\n5\n" {
		t.Errorf("%+v %+v", read, raw)
	}
	if name, err := client.Name(stat); written.Bytes != 2 || written.SandboxPath != "~/a" || more.Bytes != 2 || name != odd || stat.Size != 10 || err != nil {
		t.Errorf("%+v %+v %+v %v", written, more, stat, err)
	}
	if explained.Home != "/tmp" || explained.UserID != "alice" || len(explained.Places) == 0 {
		t.Errorf("%+v", explained)
	}
	if text, err := os.ReadFile(filepath.Join(home, "dir", "a")); err != nil || string(text) != "1\n2\n3\n4\n5\n" {
		t.Errorf("%q %v", text, err)
	}
	if names, err := filepath.Glob(filepath.Join(home, "*", "*")); err != nil || len(names) != 1 {
		t.Errorf("%q %v", names, err)
	}
	var failure *client.Error
	for kind, err := range map[types.Kind]error{
		types.Conflict: twiceErr, types.Invalid: c.Remove(ctx, "a", "~/dir", false), types.NotFound: c.Mkdir(ctx, "a", "~/none/dir", false),
	} {
		if !errors.As(err, &failure) || failure.Kind != kind {
			t.Errorf("%v is not %s", err, kind)
		}
	}
	if err := c.Remove(ctx, "a", "~/dir", true); err != nil {
		t.Error(err)
	}
}

func TestReadsAreByteExact(t *testing.T) {
	l := newLab(t, nil)
	c := l.dial(t)
	for kind, content := range map[types.ReadType]string{types.ReadText: "é\r\n\x7f", types.ReadImage: "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;", types.ReadBinary: "\x00\xffa"} {
		l.File("x", content)
		read, err := c.Read(t.Context(), "a", types.Read{Target: client.Target("x"), Binary: kind == types.ReadBinary})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Content(read)
		if err != nil || string(got) != content || read.Type != kind || (read.Lines != nil) != (kind == types.ReadText) {
			t.Errorf("%s: %q %+v %v", kind, got, read, err)
		}
	}
}

func TestNamesSurviveTheRoundTrip(t *testing.T) {
	for _, name := range []string{"plain", "caf\xe9", "\n\u2028", "\uFFFD"} {
		l := newLab(t, nil)
		l.File(name, "")
		list, err := l.dial(t).ListDir(t.Context(), "a", ".")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := client.Name(list.Entries[0]); got != name || err != nil {
			t.Errorf("%q became %q, %v", name, got, err)
		}
	}
}

func TestUploadsAreByteExact(t *testing.T) {
	large := noise(9 << 20) // more than the limit of a request
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, large, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(3, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		body io.Reader
		want []byte
	}{
		{"a file, from where it stands", file, large[3:]},
		{"a file at its end", file, nil},
		{"a stream", io.MultiReader(bytes.NewReader(large)), large},
		{"nothing", strings.NewReader(""), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, nil)
			c := l.dial(t)
			written, err := c.Upload(t.Context(), "a", "/home/"+odd, tt.body, true)
			got, readErr := os.ReadFile(filepath.Join(sandboxtest.Home(l.Dir, "alice"), odd))
			if err != nil || readErr != nil || written.Bytes != int64(len(tt.want)) || !bytes.Equal(got, tt.want) {
				t.Errorf("%d of %d bytes: %+v %v %v", len(got), len(tt.want), written, err, readErr)
			}
			var failure *client.Error
			if _, err := c.Upload(t.Context(), "a", "/home/"+odd, strings.NewReader(""), true); !errors.As(err, &failure) || failure.Kind != types.Conflict {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

// A refusal reaches the caller before the body is sent, and a failure in the middle while it is.
func TestUploadsThatFail(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	for name, tt := range map[string]struct {
		path string
		kind types.Kind
		body io.Reader
	}{
		"refused":            {"/etc/x", types.Denied, iotest.ErrReader(errors.New("nobody should have read this"))},
		"full in the middle": {"~/x", types.TooLarge, bytes.NewReader(make([]byte, 64<<20))},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLab(t, nil).dial(t)
			var before unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
				t.Fatal(err)
			}
			// As if the disk were full.
			if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: before.Max}); err != nil {
				t.Fatal(err)
			}
			_, err := c.Upload(t.Context(), "a", tt.path, tt.body, false)
			if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
				t.Fatal(err)
			}
			var failure *client.Error
			if !errors.As(err, &failure) || failure.Kind != tt.kind {
				t.Errorf("%#v", err)
			}
		})
	}
}

// A file that is written to while it is sent arrives as it was, and one that gets shorter does not pass for whole.
func TestUploadsOfFilesThatChange(t *testing.T) {
	for name, tt := range map[string]struct {
		size int64
		want string // what arrives, or else:
		err  string
	}{
		"grows":   {9, "12345", ""},
		"shrinks": {3, "", "the file got shorter while it was sent: its last 2 bytes are gone"},
	} {
		t.Run(name, func(t *testing.T) {
			here := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(here, []byte("12345"), 0o600); err != nil {
				t.Fatal(err)
			}
			file, err := os.Open(here)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			var got []byte
			c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if err := os.Truncate(here, tt.size); err != nil { // the body is sent when it is asked for
					t.Error(err)
				}
				body, err := io.ReadAll(req.Body)
				if got = body; err == nil {
					_, _ = fmt.Fprintf(w, `{"bytes":%d}`, len(got))
				}
			}))
			written, err := c.Upload(t.Context(), "a", "~/log", file, false)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Error(err)
				}
				return
			}
			if err != nil || string(got) != tt.want || written.Bytes != int64(len(tt.want)) {
				t.Errorf("%q, %+v, %v", got, written, err)
			}
		})
	}
}

// The kernel says of files of its own that they are as large as a page.
func TestUploadOfAFileWithoutASize(t *testing.T) {
	const name = "/sys/devices/system/cpu/possible"
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, nil)
	path := l.File("x", "old")
	if written, err := l.dial(t).Upload(t.Context(), "a", "~/x", file, false); err != nil || written.Bytes != int64(len(want)) {
		t.Errorf("%+v, %v", written, err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
}

func TestUploadThatIsCutShort(t *testing.T) {
	why := errors.New("the disk was pulled out")
	l := newLab(t, nil)
	path := l.File("x", "old")
	_, err := l.dial(t).Upload(t.Context(), "a", "~/x", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(why)), false)
	if !errors.Is(err, why) || strings.Contains(err.Error(), "is sandboxd running") {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("the service took it for whole: %q %v", got, err)
	}
}

func TestDownloads(t *testing.T) {
	large := noise(3 << 20)
	l, at := newLab(t, nil), time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	if err := os.Chtimes(l.File(odd, string(large)), at, at); err != nil {
		t.Fatal(err)
	}
	c := l.dial(t)
	for _, offset := range []int64{0, 1, int64(len(large)) - 1} {
		d, err := c.Download(t.Context(), "a", odd, offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(d)
		_ = d.Close()
		if err != nil || !bytes.Equal(got, large[offset:]) || d.Size != int64(len(got)) || !d.ModTime.Equal(at) {
			t.Errorf("from %d: %d bytes, size %d, %v, %v", offset, len(got), d.Size, d.ModTime, err)
		}
	}
	var failure *client.Error
	if _, err := c.Download(t.Context(), "a", odd, int64(len(large))); !errors.As(err, &failure) || failure.Kind != types.Invalid {
		t.Errorf("beyond the end: %#v", err)
	}
	if _, err := c.Download(t.Context(), "a", "x", 0); !errors.As(err, &failure) || failure.Kind != types.NotFound {
		t.Errorf("not there: %#v", err)
	}
}

// hidden is a writer of which nothing else is known.
type hidden struct{ io.Writer }

func TestDownloadsToAFile(t *testing.T) {
	large := noise(3 << 20)
	l := newLab(t, nil)
	l.File(odd, string(large))
	c := l.dial(t)
	for _, offset := range []int64{0, 1, int64(len(large)) - 1} {
		target, err := os.Create(filepath.Join(t.TempDir(), "target"))
		if err != nil {
			t.Fatal(err)
		}
		var other bytes.Buffer
		for _, to := range []io.Writer{target, hidden{&other}} {
			d, err := c.Download(t.Context(), "a", odd, offset)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(to, d); err != nil || n != d.Size {
				t.Errorf("from %d: %d bytes of %d, %v", offset, n, d.Size, err)
			}
			if n, err := d.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after the end: %d bytes, %v", n, err)
			}
			if err := errors.Join(d.Close(), d.Close()); err != nil {
				t.Error(err)
			}
		}
		got, err := os.ReadFile(target.Name())
		if err = errors.Join(err, target.Close()); err != nil || !bytes.Equal(got, large[offset:]) || !bytes.Equal(other.Bytes(), got) {
			t.Errorf("from %d: %d and %d bytes, %v", offset, len(got), other.Len(), err)
		}
	}
}

func TestDownloadsThatEndEarly(t *testing.T) {
	l := newLab(t, nil)
	name := l.File(odd, "")
	c := l.dial(t)
	gone, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	for _, c := range []struct {
		name   string
		ctx    context.Context
		spoil  func() error
		want   error
		client *client.Client
	}{
		{"a file that shrinks", t.Context(), func() error { return os.Truncate(name, 4<<20) }, io.ErrUnexpectedEOF, c},
		{"a context that ends", gone, func() error { cancel(why); return nil }, why, c},
	} {
		for _, whole := range []bool{true, false} {
			l.File(odd, string(noise(8<<20)))
			d, err := c.client.Download(c.ctx, "a", odd, 0)
			if err != nil {
				if c.ctx.Err() != nil && errors.Is(err, c.want) {
					continue // it ended at the first try
				}
				t.Fatal(err)
			}
			if err := c.spoil(); err != nil {
				t.Fatal(err)
			}
			if whole {
				target, createErr := os.Create(filepath.Join(t.TempDir(), "target"))
				if createErr != nil {
					t.Fatal(createErr)
				}
				_, err = io.Copy(target, d)
				_ = target.Close()
			} else {
				_, err = io.Copy(io.Discard, hiddenReader{d})
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%s, whole %t: %v", c.name, whole, err)
			}
			_ = d.Close()
		}
	}
}

type hiddenReader struct{ io.Reader }
