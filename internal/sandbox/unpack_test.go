package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/files"
)

// What is in archives of tests: a name that ends with a slash is a directory.
func dirEntry(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}
}

func linkEntry(name, text string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: text}
}

func fileEntry(name, content string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Uname: content, Size: int64(len(content)), Uid: 12345}
}

// tarOf makes an archive; a file's content is in its Uname.
func tarOf(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, e := range entries {
		content := e.Uname
		e.Uname = ""
		if err := w.WriteHeader(&e); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func TestUnpack(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	s := newService(t, nil, "")
	home := filepath.Join(s.usersDir(), "alice/home")
	text := tarOf(t, dirEntry("./", 0o750), fileEntry("program", "#!", 0o755), fileEntry("secret", "s", 0o600), fileEntry("writeOnly", "w", 0o200),
		dirEntry("closed/", 0o555), fileEntry("closed/f", "in it", 0o644), linkEntry("out", "/etc"), linkEntry("up", "../../x"),
		fileEntry("not/told/of/before", "x", 0o4755), tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, fileEntry("program", "#! twice", 0o600))
	done, err := s.Unpack(t.Context(), "agent", files.Where{Path: "new/dir"}, bytes.NewReader(text))
	if want := (files.Unpacked{Entries: 10, Bytes: 18, Skipped: 1, SandboxPath: "~/new/dir"}); err != nil || done != want {
		t.Errorf("%+v, %v", done, err)
	}
	for name, want := range map[string]struct {
		mode    os.FileMode
		content string
	}{
		"":                   {os.ModeDir | 0o750, ""},
		"program":            {0o755, "#! twice"},
		"secret":             {0o600, "s"},
		"writeOnly":          {0o600, "w"},
		"closed":             {os.ModeDir | 0o755, ""},
		"closed/f":           {0o644, "in it"},
		"not/told/of/before": {0o755, "x"},
		"not/told":           {os.ModeDir | 0o755, ""},
	} {
		info, err := os.Lstat(filepath.Join(home, "new/dir", name))
		if err != nil || info.Mode() != want.mode {
			t.Errorf("%s: %v, %v", name, info, err)
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(home, "new/dir", name), &st); err != nil || st.Uid != testUID {
			t.Errorf("%s belongs to %d, %v", name, st.Uid, err)
		}
		if got, _ := os.ReadFile(filepath.Join(home, "new/dir", name)); string(got) != want.content {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, text := range map[string]string{"out": "/etc", "up": "../../x"} {
		if got, err := os.Readlink(filepath.Join(home, "new/dir", name)); err != nil || got != text {
			t.Errorf("%s says %q, %v", name, got, err)
		}
	}
	if _, err := s.Unpack(t.Context(), "agent", files.Where{Path: "nothing"}, bytes.NewReader(tarOf(t))); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(home + "/nothing"); err != nil || !info.IsDir() {
		t.Errorf("%v", err)
	}
}

// TestHostileArchives: nothing comes where the sandbox may not write, whatever an archive has or somebody has prepared.
func TestHostileArchives(t *testing.T) {
	for name, tt := range map[string]struct {
		to      string
		entries []tar.Header
		is      func(error) bool
		says    string
	}{
		"up":                  {"d", []tar.Header{fileEntry("../x", "x", 0o644)}, cerrdefs.IsInvalidArgument, `".."`},
		"absolute":            {"d", []tar.Header{fileEntry("/home/x", "x", 0o644)}, cerrdefs.IsInvalidArgument, "is absolute"},
		"through its link":    {"d", []tar.Header{linkEntry("l", "/etc"), fileEntry("l/x", "x", 0o644)}, cerrdefs.IsPermissionDenied, `cannot write "~/d/l/x": "d/l" is a symbolic link`},
		"through a near link": {"d", []tar.Header{dirEntry("in/", 0o755), linkEntry("l", "in"), fileEntry("l/x", "x", 0o644)}, cerrdefs.IsPermissionDenied, "is a symbolic link"},
		"directory at a link": {"d", []tar.Header{linkEntry("l", ".."), dirEntry("l/", 0o755)}, cerrdefs.IsPermissionDenied, "is a symbolic link"},
		"file at a link":      {"d", []tar.Header{linkEntry("l", "../kept"), fileEntry("l", "x", 0o644)}, cerrdefs.IsPermissionDenied, "is a symbolic link"},
		"through an old link": {"d", []tar.Header{fileEntry("old/x", "x", 0o644)}, cerrdefs.IsPermissionDenied, "is a symbolic link"},
		"link at a directory": {"d", []tar.Header{dirEntry("a/", 0o755), linkEntry("a", "/etc")}, cerrdefs.IsConflict, "is a directory"},
		"directory at a file": {"d", []tar.Header{fileEntry("a", "x", 0o644), dirEntry("a/", 0o755)}, cerrdefs.IsConflict, "is a file"},
		"hard link":           {"d", []tar.Header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "../.ssh/id"}}, cerrdefs.IsInvalidArgument, "hard link"},
		"device":              {"d", []tar.Header{{Name: "a", Typeflag: tar.TypeBlock}}, cerrdefs.IsInvalidArgument, "device"},
		"denied":              {"~", []tar.Header{fileEntry(".ssh/authorized_keys", "x", 0o644)}, cerrdefs.IsPermissionDenied, "deny list"},
		"denied itself":       {"~", []tar.Header{linkEntry(".ssh", "d")}, cerrdefs.IsPermissionDenied, "deny list"},
		"a parent of denied":  {"~", []tar.Header{linkEntry(".config", "d")}, cerrdefs.IsPermissionDenied, "has to stay"},
		"not a directory":     {"kept", []tar.Header{fileEntry("x", "x", 0o644)}, cerrdefs.IsConflict, "not a directory"},
		"a link":              {"d/old", []tar.Header{fileEntry("x", "x", 0o644)}, cerrdefs.IsPermissionDenied, "symbolic link"},
		"where it may not":    {"/etc", []tar.Header{fileEntry("x", "x", 0o644)}, cerrdefs.IsPermissionDenied, "no place"},
		"says what stays":     {"/home", []tar.Header{fileEntry("x", "x", 0o644), fileEntry("../etc/x", "x", 0o644)}, cerrdefs.IsInvalidArgument, "what came before it stays: entries 1, bytes 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil, "")
			home := filepath.Join(s.usersDir(), "alice/home")
			if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "d/f", Body: strings.NewReader("f")}); err != nil {
				t.Fatal(err)
			}
			linked(t, home, map[string]string{".ssh/id": "the key", "kept": "kept"}, map[string]string{"d/old": "../.ssh"})
			if err := errors.Join(os.Chown(home+"/.ssh", testUID, testGID), os.Chown(home+"/kept", testUID, testGID)); err != nil {
				t.Fatal(err)
			}
			_, err := s.Unpack(t.Context(), "agent", files.Where{Path: tt.to}, bytes.NewReader(tarOf(t, tt.entries...)))
			if !tt.is(err) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), home) {
				t.Errorf("%v, want %s", err, tt.says)
			}
			if names, err := os.ReadDir(home + "/.ssh"); err != nil || len(names) != 1 {
				t.Errorf("%v, %v", names, err)
			}
			if got, err := os.ReadFile(home + "/kept"); err != nil || string(got) != "kept" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// An archive that is cut short leaves whole files only.
func TestUnpackThatIsCutShort(t *testing.T) {
	s := newService(t, nil, "")
	text := tarOf(t, fileEntry("a", "whole", 0o644), fileEntry("b", strings.Repeat("x", 5000), 0o644))
	broken := errors.New("broken")
	body := iotest.DataErrReader(&cutAfter{bytes.NewReader(text), 3000, broken})
	if _, err := s.Unpack(t.Context(), "agent", files.Where{Path: "d"}, body); !errors.Is(err, broken) || !strings.Contains(err.Error(), "entries 1") {
		t.Errorf("%v", err)
	}
	names, err := os.ReadDir(filepath.Join(s.usersDir(), "alice/home/d"))
	if err != nil || len(names) != 1 || names[0].Name() != "a" {
		t.Errorf("%v, %v", names, err)
	}
}

// cutAfter fails after some bytes.
type cutAfter struct {
	from *bytes.Reader
	left int
	err  error
}

func (c *cutAfter) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, c.err
	}
	n, err := c.from.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
