package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/archive"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// makeTree makes files, links whose content begins with "-> ", and directories whose name ends with a slash.
func makeTree(t *testing.T, dir string, entries map[string]string) {
	t.Helper()
	for name, content := range entries {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if text, is := strings.CutPrefix(content, "-> "); is {
			err = errors.Join(err, os.Symlink(text, at))
		} else if strings.HasSuffix(name, "/") {
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		} else {
			err = errors.Join(err, os.WriteFile(at, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// wantTree sees that a directory has just this.
func wantTree(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		switch {
		case err != nil || rel == "":
			return err
		case d.IsDir():
			if below, _ := os.ReadDir(name); len(below) == 0 {
				got[rel+"/"] = ""
			}
		case d.Type() == fs.ModeSymlink:
			text, _ := os.Readlink(name)
			got[rel] = "-> " + text
		default:
			content, _ := os.ReadFile(name)
			got[rel] = string(content)
		}
		return nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%s has %q, want %q (%v)", dir, got, want, err)
	}
}

// project is a directory with something of everything.
var project = map[string]string{
	"src/main.go": "package main", "src/deep/er/caf\xe9": "odd", "bin/run": "#!", ".secret": "s", "empty/": "",
	"current": "-> src", "out": "-> /etc/passwd", "dangling": "-> nowhere",
}

func modes(t *testing.T, dir string) {
	t.Helper()
	for name, mode := range map[string]os.FileMode{"bin/run": 0o755, ".secret": 0o600, "src": os.ModeDir | 0o755, "src/deep": os.ModeDir | 0o700} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info, err, mode)
		}
	}
}

func TestDirectoriesThereAndBack(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	l, dir := newLab(t, nil), t.TempDir()
	here := filepath.Join(dir, "project")
	makeTree(t, here, project)
	if err := errors.Join(os.Chmod(here+"/bin/run", 0o755), os.Chmod(here+"/.secret", 0o600), os.Chmod(here+"/src/deep", 0o700)); err != nil {
		t.Fatal(err)
	}
	l.mkdir("there")
	for _, tt := range []struct{ from, to, arrives string }{
		{here, ":", "project"}, {here, ":new", "new"}, {here, ":new", "new/project"}, {here + "/", ":there/", "there/project"}, {here + "/.", ":contents", "contents"}, {here, ":a/b/c", "a/b/c"},
	} {
		l.ok("", "cp", "-u", "alice", "-r", tt.from, tt.to)
		want := project
		if tt.arrives == "new/project" {
			continue // below the first copy
		}
		wantTree(t, l.host(tt.arrives), want)
		modes(t, l.host(tt.arrives))
	}
	wantTree(t, l.host("new/project"), project)
	for _, tt := range []struct{ from, to, arrives string }{
		{":project", dir + "/back", "back"}, {":project", dir + "/back", "back/project"}, {":there/project/.", dir + "/contents", "contents"}, {":~/there", dir + "/deep", "deep"},
	} {
		l.ok("", "cp", "-u", "alice", "-r", tt.from, tt.to)
		modes(t, filepath.Join(dir, tt.arrives, map[bool]string{true: "project"}[tt.arrives == "deep"]))
	}
	wantTree(t, dir+"/back/project", project)
	wantTree(t, dir+"/contents", project)
	wantTree(t, dir+"/deep/project", project)
	l.ok("", "cp", "-u", "alice", "-r", ":project/bin/run", dir+"/run") // a file is copied as without -r
	wantFile(t, dir+"/run", "#!")
}

// What exists stays, but for files that are replaced; no link that is there is followed, on either side.
func TestDirectoriesComeToWhatIsThere(t *testing.T) {
	l, dir := newLab(t, nil), t.TempDir()
	makeTree(t, dir, map[string]string{"new/a": "new", "new/l": "-> new", "outside/kept": "kept"})
	l.mkdir("dst")
	makeTree(t, l.host("dst"), map[string]string{"b": "old"})
	l.ok("", "cp", "-u", "alice", "-r", dir+"/new/.", ":dst")
	l.ok("", "cp", "-u", "alice", "-r", dir+"/new/.", ":dst")
	wantTree(t, l.host("dst"), map[string]string{"a": "new", "b": "old", "l": "-> new"})

	makeTree(t, dir, map[string]string{"dst/a": "old", "dst/b": "kept", "dst/l": "-> old"})
	if err := os.Chmod(dir+"/dst/a", 0o640); err != nil {
		t.Fatal(err)
	}
	l.ok("", "cp", "-u", "alice", "-r", ":dst/.", dir+"/dst")
	wantTree(t, dir+"/dst", map[string]string{"a": "new", "b": "old", "l": "-> new"})
	if info, err := os.Stat(dir + "/dst/a"); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	l.mkdir("through/l")
	makeTree(t, l.host("through"), map[string]string{"l/kept": "written", "z": "z"})
	makeTree(t, dir, map[string]string{"trap/l": "-> ../outside", "files/l": "-> ../outside/kept"})
	for _, to := range []string{"trap", "files"} {
		if _, _, err := l.run(t.Context(), "", "cp", "-u", "alice", "-r", ":through/.", dir+"/"+to); err == nil || !strings.Contains(err.Error(), "is a symbolic link here, which is not followed") {
			t.Errorf("%v", err)
		}
	}
	wantFile(t, dir+"/outside/kept", "kept")
}

func TestDirectoriesThatAreNotCopied(t *testing.T) {
	l, dir := newLab(t, nil), t.TempDir()
	makeTree(t, dir, map[string]string{"d/a": strings.Repeat("a", 2000), "f": "f"})
	if err := unix.Mkfifo(dir+"/d/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := l.run(t.Context(), "", "cp", "-u", "alice", "-r", dir+"/d", ":d"); err != nil || stderr != "sandbox: not copied: 1 FIFO, socket or device\n" {
		t.Errorf("%q, %v", stderr, err)
	}
	if err := errors.Join(unix.Mkfifo(l.host("d/fifo"), 0o600), os.MkdirAll(l.host(".ssh"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := l.run(t.Context(), "", "cp", "-u", "alice", "-r", ":~/.", dir+"/home"); err != nil || stderr != "sandbox: not copied: 1 hidden entry, 1 FIFO, socket or device\n" {
		t.Errorf("%q, %v", stderr, err)
	}
	for _, tt := range []struct {
		message string
		args    []string
	}{
		{"is a directory; use -r", []string{dir + "/d", ":d"}},
		{"is a directory", []string{":d", dir}},
		{"does not exist", []string{"-r", ":none", dir}},
		{"no such file", []string{"-r", dir + "/none", ":x"}},
		{"deny list", []string{"-r", dir + "/d", ":.ssh"}},
		{"deny list", []string{"-r", ":.ssh", dir}},
		{"not a directory", []string{"-r", dir + "/d", ":d/a"}},
		{"more than 1000 bytes; --max-size allows more", []string{"-r", "--max-size", "1000", dir + "/d", ":large"}},
		{"more than 1000 bytes; --max-size allows more", []string{"-r", "--max-size", "1000", ":d", dir + "/large"}},
		{`--max-size "much" is no size`, []string{"-r", "--max-size", "much", ":d", dir + "/x"}},
		{"/f: not a directory", []string{"-r", ":d", dir + "/f"}},
	} {
		_, _, err := l.run(t.Context(), "", append([]string{"cp", "-u", "alice"}, tt.args...)...)
		if err == nil || !strings.Contains(inFlags.Replace(err.Error()), tt.message) {
			t.Errorf("%q: %v, want %s", tt.args, err, tt.message)
		}
	}
}

// hostile makes an archive whose headers nobody has checked.
func hostile(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &text
}

// TestHostileArchivesHere: a sandbox that sends any archive writes nothing outside of the destination.
func TestHostileArchivesHere(t *testing.T) {
	link := func(name, text string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: text}
	}
	for name, tt := range map[string]struct {
		headers []tar.Header
		says    string // "" for no error
	}{
		"up":                       {[]tar.Header{{Name: "../kept"}}, `".."`},
		"up in the middle":         {[]tar.Header{{Name: "a/../../kept"}}, `".."`},
		"absolute":                 {[]tar.Header{{Name: "/tmp/kept"}}, "absolute"},
		"through its link":         {[]tar.Header{link("l", "../outside"), {Name: "l/kept"}}, "symbolic link here"},
		"through an absolute link": {[]tar.Header{link("l", "/tmp"), {Name: "l/kept"}}, "symbolic link here"},
		"through a link inside":    {[]tar.Header{{Name: "d", Typeflag: tar.TypeDir}, link("l", "d"), {Name: "l/kept"}}, "symbolic link here"},
		"a directory at a link":    {[]tar.Header{link("l", "../outside"), {Name: "l/", Typeflag: tar.TypeDir}}, "symbolic link here"},
		"a file at a link":         {[]tar.Header{link("l", "../outside/kept"), {Name: "l"}}, "symbolic link here"},
		"a link after entering":    {[]tar.Header{{Name: "d/x"}, link("d", "../outside"), {Name: "d/kept"}}, "d is a directory here"},
		"duplicates":               {[]tar.Header{{Name: "a"}, {Name: "a"}, link("l", "x"), link("l", "y"), {Name: "./", Typeflag: tar.TypeDir}}, "twice"},
		"hard link":                {[]tar.Header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "../outside/kept"}}, "hard link"},
		"device":                   {[]tar.Header{{Name: "a", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, "device"},
		"setuid":                   {[]tar.Header{{Name: "a", Mode: 0o6755}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeTree(t, dir, map[string]string{"outside/kept": "kept"})
			to := treeWriter{dir: dir + "/dst"}
			defer to.close()
			err := to.unpack(context.Background(), archive.NewReader(hostile(t, tt.headers...)))
			if tt.says == "twice" {
				tt.says = ""
				wantTree(t, dir+"/dst", map[string]string{"a": "\x00", "l": "-> y"})
			}
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %s", err, tt.says)
			}
			wantTree(t, dir+"/outside", map[string]string{"kept": "kept"})
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) > 2 {
				t.Errorf("%v, %v", entries, err)
			}
			if info, err := os.Stat(dir + "/dst/a"); err == nil && info.Mode()&^0o777 != 0 {
				t.Errorf("%v", info.Mode())
			}
		})
	}
}

// Whoever exchanges what is being copied for links brings nothing else into the archive.
func TestExchangedEntriesHere(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir, map[string]string{"src/sub/kept": "ours", "src/file": "ours", "src/other/kept": "theirs"})
	root, err := os.OpenRoot(dir + "/src")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sub, err1 := root.Lstat("sub")
	file, err2 := root.Lstat("file")
	err = errors.Join(err1, err2, os.Rename(dir+"/src/sub", dir+"/sub"), os.Symlink("other", dir+"/src/sub"), os.Remove(dir+"/src/file"), os.Symlink("other/kept", dir+"/src/file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openSame(root, "sub", sub); !errors.Is(err, errExchanged) {
		t.Errorf("%v", err)
	}
	if _, _, err := openRegular(root, "file", file); !errors.Is(err, errExchanged) {
		t.Errorf("%v", err)
	}
}

// Progress is drawn once a copy takes a while, and cleared at its end.
func TestProgressOfADirectory(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	p := &treeProgress{out: &out, name: "src", limit: 10 << 20, now: func() time.Time { return now }, begun: now}
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{{0, ""}, {2 * time.Second, clearLine + "src  4.0 MiB  2.0 MiB/s"}, {time.Millisecond, ""}, {0, ""}} {
		now = now.Add(tt.after)
		out.Reset()
		if err := p.count(2 << 20); err != nil || out.String() != tt.want {
			t.Errorf("%q, want %q (%v)", &out, tt.want, err)
		}
	}
	if err := p.count(4 << 20); err == nil || !strings.Contains(err.Error(), "more than 10.0 MiB") {
		t.Error(err)
	}
	out.Reset()
	if p.finish(); out.String() != clearLine {
		t.Errorf("%q", &out)
	}
}

// An upload that is interrupted says what it leaves.
func TestInterruptedUploadOfADirectory(t *testing.T) {
	l := newLab(t, nil)
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(dir + "/d/large")
	if err = errors.Join(err, file.Truncate(10<<30), file.Close()); err != nil { // sent for longer than this takes
		t.Fatal(err)
	}
	cmd := l.command("cp", "-u", "alice", "-r", dir+"/d", ":d")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	temporary := func() int {
		parts, _ := filepath.Glob(l.host("d/.daycare-*"))
		return len(parts)
	}
	waittest.Until(t, "the file in the sandbox", func() bool { return temporary() == 1 })
	_ = cmd.Process.Signal(unix.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(stderr.String(), "interrupted: the copy at :d is not complete") {
		t.Errorf("%v, %s", cmd.ProcessState, &stderr)
	}
	waittest.Until(t, "the end of the part", func() bool { return temporary() == 0 })
	wantTree(t, l.host("d"), map[string]string{})
}

// An interrupt leaves whole files only, and says what is there.
func TestInterruptedCopyOfADirectory(t *testing.T) {
	l := newLab(t, nil)
	l.stall, l.stallAt = make(chan struct{}), 8
	l.mkdir("d")
	makeTree(t, l.host("d"), map[string]string{"large": strings.Repeat("x", 4<<20)})
	dir := t.TempDir()
	cmd := l.command("cp", "-u", "alice", "-r", ":d", dir+"/d")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-l.stall
	waittest.Until(t, "the copy's file", func() bool {
		parts, _ := filepath.Glob(filepath.Join(dir, "d/.sandbox-cp-*"))
		return len(parts) == 1
	})
	_ = cmd.Process.Signal(unix.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(stderr.String(), "interrupted: "+dir+"/d has 1 entry (0 bytes); what was written stays") {
		t.Errorf("%v, %s", cmd.ProcessState, &stderr)
	}
	wantTree(t, dir+"/d", map[string]string{})
}
