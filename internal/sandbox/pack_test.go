package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/files"
)

// packed returns a directory's archive: files with mode and content, links with their text, counts by their key.
func packed(t *testing.T, s *Service, where files.Where) (map[string]string, error) {
	t.Helper()
	p, err := s.Pack(t.Context(), "agent", where)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var text bytes.Buffer
	if err := p.Send(&text); err != nil {
		return nil, err
	}
	found, r := map[string]string{}, tar.NewReader(&text)
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range head.PAXRecords {
			if strings.HasPrefix(key, "DAYCARE.") {
				found[key] = value
			}
		}
		switch head.Typeflag {
		case tar.TypeSymlink:
			found[head.Name] = "-> " + head.Linkname
		case tar.TypeDir, tar.TypeReg:
			found[head.Name] = fmt.Sprintf("%03o %s", head.Mode, content)
		}
	}
}

func TestPack(t *testing.T) {
	s := newService(t, nil, "/home/project")
	home := filepath.Join(s.usersDir(), "alice/home")
	if err := s.Mkdir(t.Context(), "agent", "~/project/empty", true); err != nil {
		t.Fatal(err)
	}
	linked(t, home, map[string]string{
		"project/a": "a", "project/sub/b": "b", "project/sub/secret": "s", "project/caf\xe9\n": "odd", ".ssh/id": "the key", "apps/mail/data/x": "mail",
	}, map[string]string{"project/out": "/etc", "project/sub/up": "../../.ssh/id", "entry": "project"})
	err := errors.Join(
		os.Chmod(home+"/project/a", 0o755), os.Chmod(home+"/project/sub/secret", 0o600), os.Chown(home+"/project/sub/secret", testUID, testGID),
		os.Link(home+"/.ssh/id", home+"/project/innocent"), unix.Mkfifo(home+"/project/fifo", 0o666), os.WriteFile(home+"/project/roots", nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	project := map[string]string{
		"./": "755 ", "a": "755 a", "sub/": "755 ", "sub/b": "644 b", "sub/secret": "600 s", "caf\xe9\n": "644 odd", "out": "-> /etc", "sub/up": "-> ../../.ssh/id",
		"empty/": "755 ", "DAYCARE.special": "1", "DAYCARE.hidden": "1", "DAYCARE.unreadable": "1",
	}
	for _, where := range []files.Where{{Path: "."}, {Path: "~/project/sub/.."}, {Path: "~/entry", Follow: true}} {
		found, err := packed(t, s, where)
		if diff := cmp.Diff(project, found); err != nil || diff != "" {
			t.Errorf("%+v: %v %s", where, err, diff)
		}
	}
	found, err := packed(t, s, files.Where{Path: "~"})
	if err != nil || found[".ssh/id"]+found["apps/mail/data/x"] != "" || found["project/sub/secret"] != "600 s" || found["DAYCARE.hidden"] == "" {
		t.Errorf("%v, %v", found, err)
	}
	for path, is := range map[string]func(error) bool{
		"a": cerrdefs.IsInvalidArgument, "none": cerrdefs.IsNotFound, "out": cerrdefs.IsPermissionDenied, "~/.ssh": cerrdefs.IsPermissionDenied,
		"~/entry": cerrdefs.IsPermissionDenied, "/etc": cerrdefs.IsNotFound, "": cerrdefs.IsInvalidArgument,
	} {
		if _, err := packed(t, s, files.Where{Path: path}); !is(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// homeOf makes alice's home, and returns where it is.
func homeOf(t *testing.T, s *Service) string {
	t.Helper()
	if err := s.Mkdir(t.Context(), "agent", "~/.made", true); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(s.usersDir(), "alice/home")
}

// A directory that is exchanged while its archive is sent brings nothing of another place.
func TestPackOfAnExchangedDirectory(t *testing.T) {
	s := newService(t, nil, "")
	home, outside := homeOf(t, s), t.TempDir()
	linked(t, home, map[string]string{"d/sub/f": "ours"}, nil)
	linked(t, outside, map[string]string{"f": "theirs"}, nil)
	p, err := s.Pack(t.Context(), "agent", files.Where{Path: "d"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := errors.Join(os.Rename(home+"/d/sub", home+"/sub"), os.Symlink(outside, home+"/d/sub")); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := p.Send(&text); err != nil || bytes.Contains(text.Bytes(), []byte("theirs")) {
		t.Errorf("%v, %q", err, text.Bytes())
	}
}

// An archive that fails has no end.
func TestPackThatFails(t *testing.T) {
	s := newService(t, nil, "")
	deep := strings.Repeat("d/", 130)
	linked(t, homeOf(t, s), map[string]string{"deep/" + deep + "f": "x"}, nil)
	p, err := s.Pack(t.Context(), "agent", files.Where{Path: "deep"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var text bytes.Buffer
	if err := p.Send(&text); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "deeper than 128") {
		t.Errorf("%v", err)
	}
	if got := text.String(); !strings.Contains(got, "DAYCARE.failed=cannot read") || strings.HasSuffix(got, strings.Repeat("\x00", 1024)) {
		t.Errorf("%d bytes: %q", len(got), got[max(0, len(got)-2000):])
	}
}
