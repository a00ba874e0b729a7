package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/warm"
)

// The smallest picture, and data that only begins like one.
const (
	smallGIF = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
	noPNG    = "\x89PNG\r\n\x1a\n\x00\x00"
)

func TestReadsTellPicturesFromText(t *testing.T) {
	s := newService(t, nil, "")
	ctx := t.Context()
	write := func(path, content string) {
		t.Helper()
		if _, err := s.Write(ctx, "agent", files.WriteRequest{Path: path, Body: strings.NewReader(content)}); err != nil {
			t.Fatal(err)
		}
	}
	write("~/picture.txt", smallGIF) // the name says nothing
	if got, err := s.Read(ctx, "agent", files.ReadRequest{Path: "picture.txt"}); err != nil || got.IsText || got.MimeType != "image/gif" || string(got.Content) != smallGIF {
		t.Errorf("%+v, %v", got, err)
	}
	for _, content := range []string{noPNG, smallGIF[:30], "a\x00b"} {
		write("~/binary", content)
		for _, binary := range []bool{false, true} {
			got, err := s.Read(ctx, "agent", files.ReadRequest{Path: "binary", Binary: binary})
			if err != nil || got.IsText || got.MimeType != "" || string(got.Content) != content || got.Bytes != int64(len(content)) {
				t.Errorf("%+v, %v", got, err)
			}
		}
	}
	for content, want := range map[string]string{
		strings.Replace(smallGIF, "a\x01\x00", "a\x41\x1f", 1): "a picture (image/gif) of 8001 by 1 pixels, more than 8000 (read.maxImage)",
		noPNG + strings.Repeat("x", 5_000_000):                 "begins like a picture (image/png) and has 5000010 bytes, more than 5000000",
	} {
		write("~/large", content)
		if _, err := s.Read(ctx, "agent", files.ReadRequest{Path: "large"}); !cerrdefs.IsOutOfRange(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if got, err := s.Read(ctx, "agent", files.ReadRequest{Path: "large", Binary: true}); err != nil || string(got.Content) != content {
			t.Error(err)
		}
	}
	write("/home/a/b/text", "one\ntwo\n")
	for _, path := range []string{"a/b/text", "./a/../a/b/text", "~/a/b/text", "/home/a/b/text", "/home/a/b/text/", s.usersDir() + "/alice/home/a/b/text"} {
		got, err := s.Read(ctx, "agent", files.ReadRequest{Path: path})
		if err != nil || !got.IsText || string(got.Content) != "one\ntwo\n" || got.DisplayPath != "~/a/b/text" ||
			got.ResolvedPath != s.usersDir()+"/alice/home/a/b/text" || got.TotalLines != 2 {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	if got, err := s.Read(ctx, "agent", files.ReadRequest{Path: "a/b/text", Raw: true}); err != nil || got.OutputLines != 2 || got.Bytes != 8 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFileCallsThatAreRefused(t *testing.T) {
	s := newService(t, nil, "/home/project")
	ctx := t.Context()
	home := filepath.Join(s.usersDir(), "alice/home")
	if _, err := s.Write(ctx, "agent", files.WriteRequest{Path: "/home/project/file", Body: strings.NewReader("old")}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(home+"/.ssh", 0o755), os.WriteFile(home+"/.ssh/id", []byte("secret"), 0o644),
		os.Symlink(".ssh/id", home+"/project/link"), os.Mkdir(home+"/apps", 0o755)); err != nil {
		t.Fatal(err)
	}
	read := func(r files.ReadRequest) error { _, err := s.Read(ctx, "agent", r); return err }
	write := func(r files.WriteRequest) error { _, err := s.Write(ctx, "agent", r); return err }
	for _, tt := range []struct {
		name    string
		err     error
		class   func(error) bool
		message string
	}{
		{"no path", read(files.ReadRequest{}), cerrdefs.IsInvalidArgument, "path is empty"},
		{"not there", read(files.ReadRequest{Path: "nothing"}), cerrdefs.IsNotFound, "~/project/nothing"},
		{"a directory", read(files.ReadRequest{Path: "/home/project"}), cerrdefs.IsInvalidArgument, "directory"},
		{"denied", read(files.ReadRequest{Path: "~/.ssh/id"}), cerrdefs.IsPermissionDenied, "deny list"},
		{"denied by another way", read(files.ReadRequest{Path: "../project/../.ssh/id"}), cerrdefs.IsPermissionDenied, "deny list"},
		{"a link", read(files.ReadRequest{Path: "link"}), cerrdefs.IsPermissionDenied, "symbolic link"},
		{"an app", read(files.ReadRequest{Path: "~/apps/mail/x"}), cerrdefs.IsPermissionDenied, "apps"},
		{"the image's", read(files.ReadRequest{Path: "/etc/passwd"}), cerrdefs.IsNotFound, "no mount"},
		{"NUL", read(files.ReadRequest{Path: "a\x00"}), cerrdefs.IsInvalidArgument, "path"},
		{"too long", read(files.ReadRequest{Path: strings.Repeat("a/", 2049)}), cerrdefs.IsInvalidArgument, "4098"},
		{"lines of bytes", read(files.ReadRequest{Path: "file", Binary: true, Offset: 1}), cerrdefs.IsInvalidArgument, "binary"},
		{"append and exclusive", write(files.WriteRequest{Path: "~/project/x", Append: true, Exclusive: true}), cerrdefs.IsInvalidArgument, "append and exclusive"},
		{"outside", write(files.WriteRequest{Path: "/etc/x"}), cerrdefs.IsPermissionDenied, "/etc/x"},
		{"beside the working directory", write(files.WriteRequest{Path: "~/x"}), cerrdefs.IsPermissionDenied, "writeDirs"},
		{"denied to write", write(files.WriteRequest{Path: "~/.ssh/authorized_keys"}), cerrdefs.IsPermissionDenied, "deny list"},
		{"over a link", write(files.WriteRequest{Path: "~/project/link"}), cerrdefs.IsPermissionDenied, "symbolic link"},
		{"exists", write(files.WriteRequest{Path: "~/project/file", Exclusive: true}), cerrdefs.IsConflict, "exists"},
		{"unknown sandbox", func() error { _, err := s.Read(ctx, "other", files.ReadRequest{Path: "x"}); return err }(), cerrdefs.IsNotFound, "other"},
		{"the working directory itself", s.Remove(ctx, "agent", "/home/project", true), cerrdefs.IsPermissionDenied, "has to stay"},
		{"move out of reach", s.Move(ctx, "agent", "~/project/file", "~/file", false), cerrdefs.IsPermissionDenied, "~/file"},
		{"move what is denied", s.Move(ctx, "agent", "~/.ssh/id", "~/project/id", false), cerrdefs.IsPermissionDenied, "deny list"},
		{"make outside", s.Mkdir(ctx, "agent", "/home/other", true), cerrdefs.IsPermissionDenied, "/other"},
	} {
		if !tt.class(tt.err) || !strings.Contains(tt.err.Error(), tt.message) || strings.Contains(tt.err.Error(), s.usersDir()+"/alice/") {
			t.Errorf("%s: %v, want %s", tt.name, tt.err, tt.message)
		}
	}
	if got, err := os.ReadFile(home + "/project/file"); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	checkNoLeftovers(t, home, ".ssh", "apps", "project")
	checkNoLeftovers(t, home+"/project", "file", "link")
}

func TestUploadsThatAreCutShort(t *testing.T) {
	s := newService(t, nil, "")
	broken := errors.New("the caller has gone")
	for _, exclusive := range []bool{false, true} {
		body := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(broken))
		if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/up", Body: body, Exclusive: exclusive}); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	checkNoLeftovers(t, filepath.Join(s.usersDir(), "alice/home"))
	if w, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/up", Body: strings.NewReader("abc")}); err != nil || w.Bytes != 3 || w.SandboxPath != "~/up" {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestListingsHideWhatIsHidden(t *testing.T) {
	s := newService(t, nil, "")
	home := filepath.Join(s.usersDir(), "alice/home")
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/a\xff", Body: strings.NewReader("x")}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(home+"/.ssh", 0o755), os.MkdirAll(home+"/.config/gh", 0o755), os.MkdirAll(home+"/apps/mail", 0o755)); err != nil {
		t.Fatal(err)
	}
	list, err := s.ListDir(t.Context(), "agent", files.Where{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list.Entries {
		names = append(names, e.Type+" "+e.Name)
	}
	if got := strings.Join(names, ", "); got != "directory .config, directory apps, file a\xff" {
		t.Errorf("%q", got)
	}
	if got, err := s.ListDir(t.Context(), "agent", files.Where{Path: "~/.config"}); err != nil || len(got.Entries) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.ListDir(t.Context(), "agent", files.Where{Path: "~/apps"}); err != nil || len(got.Entries) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Read(t.Context(), "agent", files.ReadRequest{Path: "a\xff"}); err != nil || string(got.Content) != "x" {
		t.Errorf("%+v, %v", got, err)
	}
}

// What a call gets is explained without anything being made, and is what the call gets.
func TestExplanationsMakeNothing(t *testing.T) {
	var ran dockerexec.Spec
	s := newService(t, &fakeExecutor{run: func(spec dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
		ran = spec
		return warm.Result{}, nil
	}}, "/home/project")
	e, err := s.Explain(t.Context(), "agent", false, Confinement{Permissions: []string{"@workspace"}})
	if err != nil {
		t.Fatal(err)
	}
	checkNoLeftovers(t, filepath.Join(s.usersDir(), "alice/home"))
	modes := map[string]string{}
	for _, p := range e.Places {
		modes[p.Path.String()] = p.Mode.String()
		if p.Why == "" {
			t.Errorf("no reason for %s", p.Path)
		}
	}
	for path, want := range map[string]string{"/home": "readOnly", "/home/project": "writable", "/tmp": "writable", "/home/.ssh": "hidden", "/home/apps": "empty", "/etc/shadow": "hidden"} {
		if modes[path] != want {
			t.Errorf("%s is %q, want %q", path, modes[path], want)
		}
	}
	if _, err := s.Exec(t.Context(), "agent", Request{Command: "true", Confinement: Confinement{Permissions: []string{"@workspace"}}}, nil); err != nil {
		t.Fatal(err)
	}
	again, err := s.Explain(t.Context(), "agent", false, Confinement{Permissions: []string{"@workspace"}})
	if err != nil || again.Fingerprint != string(ran.Fingerprint()) {
		t.Errorf("explained %s, ran %s, %v", again.Fingerprint, ran.Fingerprint(), err)
	}
}

// The user's containers are told of what is gone from a path, and of nothing else.
func TestContainersAreToldWhatIsRemoved(t *testing.T) {
	executor := &fakeExecutor{}
	s := newService(t, executor, "")
	ctx := t.Context()
	write := func(r files.WriteRequest) error {
		r.Body = strings.NewReader("text")
		_, err := s.Write(ctx, "agent", r)
		return err
	}
	unpack := func(name string) error {
		var body bytes.Buffer
		to := tar.NewWriter(&body)
		err := errors.Join(to.WriteHeader(&tar.Header{Name: name, Mode: 0o644}), to.Close())
		if err == nil {
			_, err = s.Unpack(ctx, "agent", files.Where{Path: "dir"}, &body)
		}
		return err
	}
	home := s.usersDir() + "/alice/home"
	for _, tt := range []struct {
		what string
		do   func() error
		// what is released, told of as changed, and offered to be renamed inside
		want, changed, renamed []string
	}{
		{"new", func() error { return write(files.WriteRequest{Path: "dir/file"}) }, nil, []string{"/home/dir/file made", "/home/dir made"}, []string{".daycare- to /home/dir/file"}},
		{"appended", func() error { return write(files.WriteRequest{Path: "dir/file", Append: true}) }, nil, []string{"/home/dir/file modified"}, nil},
		{"replaced", func() error { return write(files.WriteRequest{Path: "dir/file"}) }, []string{"alice " + home + "/dir/file /home/dir/file"}, []string{"/home/dir/file replaced"}, []string{".daycare- to /home/dir/file"}},
		{"made", func() error { return s.Mkdir(ctx, "agent", "made", false) }, nil, []string{"/home/made made"}, nil},
		{"unpacked beside it", func() error { return unpack("other") }, nil, []string{"/home/dir/other made", "/home/dir made"}, nil},
		{"unpacked over it", func() error { return unpack("file") }, []string{"alice " + home + "/dir/file /home/dir/file"}, []string{"/home/dir/file replaced"}, nil},
		{"moved", func() error { return s.Move(ctx, "agent", "dir", "to", false) }, []string{"alice " + home + "/dir /home/dir", "alice " + home + "/to /home/to"}, nil, nil},
		{"removed", func() error { return s.Remove(ctx, "agent", "to", true) }, []string{"alice " + home + "/to /home/to"}, nil, nil},
	} {
		executor.removed, executor.changed, executor.renamed = nil, nil, nil
		if err := tt.do(); err != nil || !slices.Equal(executor.removed, tt.want) || !slices.Equal(executor.changed, tt.changed) || !slices.Equal(executor.renamed, tt.renamed) {
			t.Errorf("%s: %q, %q, %q, %v", tt.what, executor.removed, executor.changed, executor.renamed, err)
		}
	}
}
