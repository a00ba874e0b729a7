package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// fakeFiles keeps what it was asked, and answers with what a test sets.
type fakeFiles struct {
	asked []any
	found sandbox.ReadResult
	entry sandbox.Entry
	// file is downloaded; upload takes an upload.
	file   string
	upload func(sandbox.UploadRequest) (sandbox.Written, error)
}

func (f *fakeFiles) Read(_ context.Context, _ string, r sandbox.ReadRequest) (sandbox.ReadResult, error) {
	f.asked = append(f.asked, r)
	return f.found, nil
}
func (f *fakeFiles) Write(_ context.Context, _ string, r sandbox.WriteRequest) (sandbox.Written, error) {
	f.asked = append(f.asked, r)
	return sandbox.Written{Bytes: int64(len(r.Content)), SandboxPath: "~/a"}, nil
}
func (f *fakeFiles) Upload(_ context.Context, _ string, r sandbox.UploadRequest) (sandbox.Written, error) {
	return f.upload(r)
}
func (f *fakeFiles) Download(context.Context, string, string) (sandbox.Download, error) {
	file, err := os.Open(f.file)
	if err != nil {
		return sandbox.Download{}, cerrdefs.ErrNotFound
	}
	info, err := file.Stat()
	return sandbox.Download{ReadSeekCloser: file, Name: "x", Size: info.Size(), ModTime: info.ModTime()}, err
}
func (f *fakeFiles) ListDir(_ context.Context, _, path string) (sandbox.Listing, error) {
	return sandbox.Listing{Path: path, Entries: []sandbox.Entry{f.entry}}, nil
}
func (f *fakeFiles) Stat(_ context.Context, _, path string) (sandbox.Entry, error) {
	f.asked = append(f.asked, path)
	return f.entry, nil
}
func (f *fakeFiles) Mkdir(_ context.Context, _, path string, parents bool) error {
	f.asked = append(f.asked, path, parents)
	return nil
}
func (f *fakeFiles) Move(_ context.Context, _ string, r sandbox.MoveRequest) error {
	f.asked = append(f.asked, r)
	return nil
}
func (f *fakeFiles) Remove(_ context.Context, _, path string, recursive bool) error {
	f.asked = append(f.asked, path, recursive)
	return nil
}

// odd is a path that is not UTF-8, and that means something in a query.
const odd = "/home/caf\xe9 & co+%41?#\n"

func TestFileCallsAskForWhatWasMeant(t *testing.T) {
	files := &fakeFiles{found: sandbox.ReadResult{Type: sandbox.ReadText, Content: []byte("a\n"), TotalLines: 5, OutputLines: 1, TruncatedBy: "lines"}}
	c := dial(t, &fakeService{Files: files})
	ctx, two := t.Context(), 2
	read, readErr := c.Read(ctx, "a", types.Read{Target: client.Target(odd), Offset: &two, Raw: true})
	written, writeErr := c.Write(ctx, "a", types.Write{Target: client.Target("~/a"), Content: "é", Append: true})
	_, statErr := c.Stat(ctx, "a", odd)
	explained, explainErr := c.Explain(ctx, "a", types.Explain{Permissions: []string{"@network"}, Home: "/tmp"})
	if err := errors.Join(readErr, writeErr, statErr, explainErr, c.Mkdir(ctx, "a", odd, true),
		c.Move(ctx, "a", "from", odd, true), c.Remove(ctx, "a", odd, true)); err != nil {
		t.Fatal(err)
	}
	want := []any{
		sandbox.ReadRequest{Path: odd, Offset: 2, Raw: true},
		sandbox.WriteRequest{Path: "~/a", Content: []byte("é"), Append: true},
		odd, odd, true, sandbox.MoveRequest{From: "from", To: odd, Overwrite: true}, odd, true,
	}
	if diff := cmp.Diff(want, files.asked); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if read.Lines == nil || read.TotalLines != 5 || *read.TruncatedBy != "lines" || written.Bytes != 2 || written.SandboxPath != "~/a" {
		t.Errorf("%+v %+v", read, written)
	}
	if explained.Home != "/tmp" || explained.Places[0].Why != "@network" {
		t.Errorf("%+v", explained)
	}
}

func TestReadsAreByteExact(t *testing.T) {
	for _, kind := range []sandbox.ReadType{sandbox.ReadText, sandbox.ReadImage, sandbox.ReadBinary} {
		content := []byte("\x00\xffa")
		if kind == sandbox.ReadText {
			content = []byte("é\r\n\x00")
		}
		c := dial(t, &fakeService{Files: &fakeFiles{found: sandbox.ReadResult{Type: kind, Content: content}}})
		read, err := c.Read(t.Context(), "a", types.Read{Target: client.Target("x")})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Content(read)
		if err != nil || !bytes.Equal(got, content) || (read.Lines != nil) != (kind == sandbox.ReadText) {
			t.Errorf("%s: %q %+v %v", kind, got, read, err)
		}
	}
}

func TestNamesSurviveTheRoundTrip(t *testing.T) {
	for _, name := range []string{"plain", "caf\xe9", "\n\u2028", "\uFFFD"} {
		c := dial(t, &fakeService{Files: &fakeFiles{entry: sandbox.Entry{Name: name}}})
		list, err := c.ListDir(t.Context(), "a", ".")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := client.Name(list.Entries[0]); got != name || err != nil {
			t.Errorf("%q became %q, %v", name, got, err)
		}
	}
}

// takes is an upload that is read to its end.
func takes(into *bytes.Buffer, asked *sandbox.UploadRequest) func(sandbox.UploadRequest) (sandbox.Written, error) {
	return func(r sandbox.UploadRequest) (sandbox.Written, error) {
		*asked = r
		n, err := io.Copy(into, r.Body)
		return sandbox.Written{Bytes: n}, err
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
			var got bytes.Buffer
			var asked sandbox.UploadRequest
			c := dial(t, &fakeService{Files: &fakeFiles{upload: takes(&got, &asked)}})
			written, err := c.Upload(t.Context(), "a", odd, tt.body, true)
			if err != nil || written.Bytes != int64(len(tt.want)) || !bytes.Equal(got.Bytes(), tt.want) {
				t.Errorf("%d of %d bytes: %+v %v", got.Len(), len(tt.want), written, err)
			}
			if asked.Path != odd || !asked.Exclusive {
				t.Errorf("%+v", asked)
			}
		})
	}
}

// A refusal reaches the caller before the body is sent, and a failure in the middle while it is.
func TestUploadsThatFail(t *testing.T) {
	for name, tt := range map[string]struct {
		upload func(sandbox.UploadRequest) (sandbox.Written, error)
		kind   types.Kind
		body   io.Reader
	}{
		"refused": {
			func(sandbox.UploadRequest) (sandbox.Written, error) {
				return sandbox.Written{}, cerrdefs.ErrPermissionDenied
			},
			types.Denied, iotest.ErrReader(errors.New("nobody should have read this")),
		},
		"full in the middle": {
			func(r sandbox.UploadRequest) (sandbox.Written, error) {
				_, err := io.CopyN(io.Discard, r.Body, 1<<20)
				return sandbox.Written{}, errors.Join(err, errs.ErrNoSpace)
			},
			types.TooLarge, bytes.NewReader(make([]byte, 64<<20)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, &fakeService{Files: &fakeFiles{upload: tt.upload}})
			_, err := c.Upload(t.Context(), "a", "x", tt.body, false)
			var failure *client.Error
			if !errors.As(err, &failure) || failure.Kind != tt.kind {
				t.Errorf("%#v", err)
			}
		})
	}
}

func TestUploadThatIsCutShort(t *testing.T) {
	why := errors.New("the disk was pulled out")
	seen := make(chan error, 1)
	c := dial(t, &fakeService{Files: &fakeFiles{upload: func(r sandbox.UploadRequest) (sandbox.Written, error) {
		_, err := io.Copy(io.Discard, r.Body)
		seen <- err
		return sandbox.Written{}, err
	}}})
	_, err := c.Upload(t.Context(), "a", "x", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(why)), false)
	if !errors.Is(err, why) || strings.Contains(err.Error(), "is sandboxd running") {
		t.Error(err)
	}
	if err := <-seen; err == nil {
		t.Error("the service took it for whole")
	}
}

func TestDownloads(t *testing.T) {
	large := noise(3 << 20)
	name := filepath.Join(t.TempDir(), "large")
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	if err := errors.Join(os.WriteFile(name, large, 0o600), os.Chtimes(name, at, at)); err != nil {
		t.Fatal(err)
	}
	c := dial(t, &fakeService{Files: &fakeFiles{file: name}})
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
	if _, err := c.Download(t.Context(), "a", "x", int64(len(large))); !errors.As(err, &failure) || failure.Kind != types.Invalid {
		t.Errorf("beyond the end: %#v", err)
	}
	if _, err := dial(t, &fakeService{Files: &fakeFiles{}}).Download(t.Context(), "a", "x", 0); !errors.As(err, &failure) || failure.Kind != types.NotFound {
		t.Errorf("not there: %#v", err)
	}
}

// hidden is a writer of which nothing else is known.
type hidden struct{ io.Writer }

func TestDownloadsToAFile(t *testing.T) {
	large := noise(3 << 20)
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, large, 0o600); err != nil {
		t.Fatal(err)
	}
	c := dial(t, &fakeService{Files: &fakeFiles{file: name}})
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
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, noise(8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	c := dial(t, &fakeService{Files: &fakeFiles{file: name}})
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
			if err := os.WriteFile(name, noise(8<<20), 0o600); err != nil {
				t.Fatal(err)
			}
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
