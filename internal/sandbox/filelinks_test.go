package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/files"
)

// linked makes files of a home, and symbolic links by name.
func linked(t *testing.T, home string, files, links map[string]string) {
	t.Helper()
	for name, content := range files {
		err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755), os.WriteFile(filepath.Join(home, name), []byte(content), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range links {
		err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o755), os.Symlink(text, filepath.Join(home, name)))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLinksOnTheWay(t *testing.T) {
	s := newService(t, nil, "/home/project")
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "file", Body: strings.NewReader("own")}); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(s.usersDir(), "alice/home")
	linked(t, home, map[string]string{
		"project/node_modules/.pnpm/a@1/node_modules/a/index.js": "a", "notes/deep/x": "x", ".ssh/id": "secret", "AGENTS.md": "rules",
	}, map[string]string{
		"project/node_modules/a":  ".pnpm/a@1/node_modules/a",
		"project/node_modules/b":  "./a/../a",
		"project/CLAUDE.md":       "../AGENTS.md",
		"project/absolute":        "/home/notes",
		"project/up":              "absolute/deep/..",
		"project/chain":           "up",
		"project/keys":            "../.ssh",
		"project/etc":             "/etc",
		"project/outside":         "../../../../../../../../etc",
		"project/loop":            "loop/x",
		"project/loop1":           "loop2",
		"project/loop2":           "loop1",
		"project/nowhere":         "nothing/there",
		"project/self":            ".",
		"notes/back":              "/home/project",
		"project/" + "far":        strings.Repeat("node_modules/../", 200),
		"project/farther":         strings.Repeat("far/", 50),
		"project/key":             "../.ssh/id",
		"project/tmp":             "/tmp",
		"project/new":             "made/by-the-link",
		"project/node_modules/up": "..",
	})
	linked(t, home, map[string]string{"project/a\x1b[31m\n": "red"}, nil)
	for _, tt := range []struct {
		path   string
		follow bool
		want   string // the content, or what the error says
		is     func(error) bool
	}{
		{"node_modules/a/index.js", false, "a", nil},
		{"node_modules/b/index.js", false, "a", nil},
		{"absolute/deep/x", false, "x", nil},
		{"up/deep/x", false, "x", nil},
		{"chain/deep/x", false, "x", nil},
		{"self/self/file", false, "own", nil},
		{"~/notes/back/file", false, "own", nil},
		{"node_modules/up/file", false, "own", nil},
		{"CLAUDE.md", true, "rules", nil},
		{"CLAUDE.md", false, `it is a symbolic link to "~/AGENTS.md"; name that, or set follow`, cerrdefs.IsPermissionDenied},
		{"self/CLAUDE.md", false, `"~/project/self/CLAUDE.md", which leads to "~/project/CLAUDE.md"`, cerrdefs.IsPermissionDenied},
		{"etc", false, `symbolic link to "/etc"`, cerrdefs.IsPermissionDenied},
		{"keys/id", false, `"~/project/keys/id", which leads to "~/.ssh/id": on the deny list`, cerrdefs.IsPermissionDenied},
		{"key", true, "deny list", cerrdefs.IsPermissionDenied},
		{"etc/passwd", false, `leads to "/etc/passwd": that is in no mount`, cerrdefs.IsPermissionDenied},
		{"outside/passwd", false, "no mount", cerrdefs.IsPermissionDenied},
		{"loop", true, "more than 40", cerrdefs.IsPermissionDenied},
		{"loop1/x", false, "more than 40", cerrdefs.IsPermissionDenied},
		{"nowhere", true, `which leads to "~/project/nothing/there"`, cerrdefs.IsNotFound},
		{"farther/file", false, "more than 10000 steps", cerrdefs.IsPermissionDenied},
		{"~/.ssh/../AGENTS.md", false, "rules", nil}, // by name, as a caller's path always was
		{"a\x1b[31m\n", false, "red", nil},
	} {
		got, err := s.Read(t.Context(), "agent", files.ReadRequest{Path: tt.path, Follow: tt.follow})
		switch {
		case tt.is == nil && (err != nil || string(got.Content) != tt.want):
			t.Errorf("%s: %q, %v", tt.path, got.Content, err)
		case tt.is != nil && (!tt.is(err) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %s", tt.path, err, tt.want)
		}
		if file, err := s.Download(t.Context(), "agent", files.Where{Path: tt.path, Follow: tt.follow}); err == nil {
			if content, err := io.ReadAll(file); tt.is != nil || err != nil || string(content) != tt.want {
				t.Errorf("download %s: %q, %v", tt.path, content, err)
			}
			_ = file.Close()
		} else if tt.is == nil {
			t.Errorf("download %s: %v", tt.path, err)
		}
	}
}

func TestWritesThroughLinks(t *testing.T) {
	s := newService(t, nil, "/home/project")
	write := func(path string, follow bool) error {
		_, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: path, Follow: follow, Body: strings.NewReader("new")})
		return err
	}
	if err := write("dir/file", false); err != nil { // relative, as for a read
		t.Fatal(err)
	}
	home := filepath.Join(s.usersDir(), "alice/home")
	linked(t, home, map[string]string{"other/file": "old", ".ssh/id": "secret"}, map[string]string{
		"project/in": "dir", "project/link": "in/file", "project/beside": "../other", "project/key": "../.ssh/id",
		"project/etc": "/etc/x", "project/new": "in/made", "other/project": "../project",
	})
	for _, tt := range []struct {
		err  error
		want string // what the error says; "" for none
	}{
		{write("in/file", false), ""},
		{write("~/other/project/in/file", false), ""}, // through what may only be read, to what may be written
		{write("link", true), ""},
		{write("new", true), ""},
		{write("link", false), `symbolic link to "~/project/in/file"`},
		{write("beside/file", false), `which leads to "~/other/file": this sandbox may not write there`},
		{write("key", true), "deny list"},
		{write("etc", true), "no place that this sandbox may write to"},
		{s.Mkdir(t.Context(), "agent", "in/sub/deeper", true), ""},
		{s.Mkdir(t.Context(), "agent", "beside/sub", true), "may not write there"},
		{s.Move(t.Context(), "agent", "in/made", "in/moved", false), ""},
		{s.Move(t.Context(), "agent", "in/file", "beside/file", true), "may not write there"},
		{s.Remove(t.Context(), "agent", "in/moved", false), ""},
		{s.Remove(t.Context(), "agent", "beside/file", false), "may not write there"},
		{s.Remove(t.Context(), "agent", "~/other/project", true), "may not write there"},
		{s.Remove(t.Context(), "agent", "in", true), ""}, // the link, not the directory
	} {
		if (tt.err == nil) != (tt.want == "") || tt.err != nil && !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v, want %q", tt.err, tt.want)
		}
	}
	for name, want := range map[string]string{"project/dir/file": "new", "other/file": "old", ".ssh/id": "secret"} {
		if got, err := os.ReadFile(filepath.Join(home, name)); string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	checkNoLeftovers(t, filepath.Join(home, "project/dir"), "file", "sub")
}

// A call with permissions sees what a command with them does; and so do the links on its way.
func TestFileCallsWithPermissions(t *testing.T) {
	s := newService(t, nil, "/home/project")
	write := func(path string, tags []string) error {
		_, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: path, Permissions: tags, Body: strings.NewReader("x")})
		return err
	}
	none, workspace := []string{}, []string{"@workspace"}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{write("file", nil), ""},
		{write("file", workspace), ""},
		{write("file", none), "may not write there"},
		{write("file", []string{"@write:/home/other"}), "@write:/home/other"},
	} {
		if (tt.err == nil) != (tt.want == "") || tt.err != nil && !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v, want %q", tt.err, tt.want)
		}
	}
	if got, err := s.Read(t.Context(), "agent", files.ReadRequest{Path: "file", Permissions: none}); err != nil || string(got.Content) != "x" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestListingsTellLinks(t *testing.T) {
	s := newService(t, nil, "")
	home := filepath.Join(s.usersDir(), "alice/home")
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "dir/file", Body: strings.NewReader("x")}); err != nil {
		t.Fatal(err)
	}
	linked(t, home, nil, map[string]string{"link": "dir", "lost": "/nowhere/\xff"})
	list, err := s.ListDir(t.Context(), "agent", files.Where{})
	if got := fmt.Sprintf("%q", []string{list.Entries[1].LinkTarget, list.Entries[2].LinkTarget}); err != nil || got != `["dir" "/nowhere/\xff"]` {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := s.ListDir(t.Context(), "agent", files.Where{Path: "link"}); !cerrdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if list, err := s.ListDir(t.Context(), "agent", files.Where{Path: "link", Follow: true}); err != nil || len(list.Entries) != 1 || list.Path != "~/dir" {
		t.Errorf("%+v, %v", list, err)
	}
	for follow, want := range map[bool]string{false: "symlink", true: "directory"} {
		if got, err := s.Stat(t.Context(), "agent", files.Where{Path: "link", Follow: follow}); err != nil || got.Type != want || got.Name != "link" {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// Somebody exchanges a directory for links to what must not be read, or not be written, while calls go through it. What a
// link leads to is decided about like any path, so calls get what is theirs or are refused.
func TestExchangesOfLinks(t *testing.T) {
	s := newService(t, nil, "/home/project")
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "d/f", Body: strings.NewReader("ours")}); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(s.usersDir(), "alice/home")
	linked(t, home, map[string]string{".ssh/f": "secret", "readable/f": "readable"},
		map[string]string{"project/d.1": "../.ssh", "project/d.2": "../readable", "project/file": "d/f"})
	dir, err := os.Open(filepath.Join(home, "project"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			other := fmt.Sprintf("d.%d", 1+n/2%2)
			_ = unix.Renameat2(int(dir.Fd()), "d", int(dir.Fd()), other, unix.RENAME_EXCHANGE)
		}
	}()
	done, refused := 0, 0
	for n := 0; n < 100_000 && (n < 4000 || done < 100 || refused < 100); n++ {
		var err error
		switch n % 4 {
		case 0, 1:
			var got files.ReadResult
			got, err = s.Read(t.Context(), "agent", files.ReadRequest{Path: []string{"d/f", "file"}[n%2], Follow: true})
			if content := string(got.Content); err == nil && content != "ours" && content != "readable" {
				t.Fatalf("read %q", content)
			}
		case 2:
			_, err = s.Write(t.Context(), "agent", files.WriteRequest{Path: "d/f", Body: strings.NewReader("ours")})
		case 3:
			_, err = s.ListDir(t.Context(), "agent", files.Where{Path: "d", Follow: true})
		}
		switch {
		case err == nil:
			done++
		case cerrdefs.IsPermissionDenied(err), cerrdefs.IsConflict(err):
			refused++
		default:
			t.Errorf("call %d: %v", n, err)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d calls done, %d refused", done, refused)
	if done < 100 || refused < 100 {
		t.Error("the calls met no exchanges")
	}
	for name, want := range map[string]string{".ssh/f": "secret", "readable/f": "readable"} {
		if got, err := os.ReadFile(filepath.Join(home, name)); string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	checkNoLeftovers(t, filepath.Join(home, ".ssh"), "f")
	checkNoLeftovers(t, filepath.Join(home, "readable"), "f")
}

// Links in /tmp cost one look at what is /tmp, however many there are: for that, the whole call is planned.
func TestLinksInTmp(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	executor := &fakeExecutor{tmp: dir}
	s := newService(t, executor, "")
	linked(t, dir, map[string]string{"d/file": "x"}, map[string]string{"a": "b/../b", "b": "c/../c", "c": "/tmp/d", "home": "/home/back", "own": "/home"})
	if err := os.Chmod(filepath.Join(dir, "d"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), "agent", files.WriteRequest{Path: "~/file", Body: strings.NewReader("own")}); err != nil {
		t.Fatal(err)
	}
	linked(t, filepath.Join(s.usersDir(), "alice/home"), nil, map[string]string{"back": "/tmp/d/.."})
	for path, want := range map[string]struct {
		content string
		looks   int
	}{"/tmp/a/file": {"x", 1}, "/tmp/d/file": {"x", 1}, "~/back/a/file": {"x", 1}, "/tmp/home/a/file": {"x", 2}, "~/file": {"own", 0}} {
		executor.tmpFor = nil
		got, err := s.Read(t.Context(), "agent", files.ReadRequest{Path: path})
		if err != nil || string(got.Content) != want.content || len(executor.tmpFor) != want.looks {
			t.Errorf("%s: %q, %v, %d looks", path, got.Content, err, len(executor.tmpFor))
		}
	}
	for _, err := range []error{
		s.Remove(t.Context(), "agent", "/tmp/own/file", false),
		s.Mkdir(t.Context(), "agent", "/tmp/own/dir", false),
		s.Move(t.Context(), "agent", "~/file", "/tmp/own/moved", false),
		s.Remove(t.Context(), "agent", "~/back/own/file", false),
	} {
		if !cerrdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "a symbolic link in /tmp, where every call may write, leads there") {
			t.Errorf("out of /tmp: %v", err)
		}
	}
	if err := s.Mkdir(t.Context(), "agent", "/tmp/a/dir", false); err != nil {
		t.Errorf("within /tmp: %v", err)
	}
}
