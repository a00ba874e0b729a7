package e2b

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/e2b/filesystempb"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// put writes a file as a body without a form.
func put(b *box, path, text string, change ...func(http.Header)) (int, string) {
	b.t.Helper()
	header := b.header()
	header.Set("Content-Type", "application/octet-stream")
	for _, c := range change {
		c(header)
	}
	status, answer, _ := b.send("POST", "/files?path="+url.QueryEscape(path), text, header)
	return status, answer
}

func get(b *box, path string) (int, string) {
	b.t.Helper()
	status, text, _ := b.send("GET", "/files?path="+url.QueryEscape(path), "", b.header())
	return status, text
}

// elsewhere is a directory that is neither in a home nor in /tmp.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "e2b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestFiles writes and reads in the home, through a link in it, and elsewhere.
func TestFiles(t *testing.T) {
	b := newLab(t).create(`{}`)
	outside := elsewhere(t)
	for written, at := range map[string]string{
		"a.txt": "/home/user/a.txt", "new/dir/b": "/home/user/new/dir/b", "~/c": "/home/user/c", "/home/user/d": "/home/user/d", "x/../e": "/home/user/e",
		outside + "/new/f": outside + "/new/f",
	} {
		status, text := put(b, written, "of "+written)
		if want := fmt.Sprintf(`[{"name":%q,"path":%q,"type":"file"}]`, filepath.Base(at), at); status != http.StatusOK || text != want {
			t.Errorf("%s: %d %s", written, status, text)
		}
		if status, text := get(b, at); status != http.StatusOK || text != "of "+written {
			t.Errorf("%s: %d %s", at, status, text)
		}
	}
	if err := os.Mkdir(filepath.Join(outside, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"none": 404, "new": 400, outside + "/none": 404, outside + "/dir": 400, outside + "/none/at/all": 404, outside + "/new/f/x": 400, "": 400, "a\x00b": 400,
	} {
		if status, text := get(b, path); status != want || !strings.Contains(text, fmt.Sprintf(`"code":%d`, want)) {
			t.Errorf("%q: %d %s", path, status, text)
		}
	}
	for path, want := range map[string]int{"": 400, "dir/": 400, "/home/user": 400, outside + "/dir": 400, outside + "/new/f/x": 400} {
		if status, text := put(b, path, "x"); status != want {
			t.Errorf("%q: %d %s", path, status, text)
		}
	}
}

// TestMissingParentsOutsideAreMade has the agent make what the user may lack outside of the home and /tmp, and nowhere else.
func TestMissingParentsOutsideAreMade(t *testing.T) {
	b := newLab(t).create(`{}`)
	dir := elsewhere(t)
	put(b, "inside/x", "x")
	put(b, dir+"/a/file", "x")
	for _, path := range []string{"inside/y", dir + "/b"} {
		if _, err := call[filesystempb.MakeDirRequest, filesystempb.MakeDirResponse](b, "MakeDir", &filesystempb.MakeDirRequest{Path: path}); err != nil {
			t.Error(err)
		}
	}
	if _, err := call[filesystempb.MoveRequest, filesystempb.MoveResponse](b, "Move", &filesystempb.MoveRequest{Source: dir + "/a", Destination: dir + "/c/d"}); err != nil {
		t.Error(err)
	}
	b.engine.mu.Lock()
	defer b.engine.mu.Unlock()
	if want := []control.Make{{Path: dir + "/a/file"}, {Path: dir + "/b", Dir: true}, {Path: dir + "/c", Dir: true}}; !slices.Equal(b.engine.makes, want) {
		t.Errorf("%+v", b.engine.makes)
	}
}

func TestForms(t *testing.T) {
	b := newLab(t).create(`{}`)
	form := func(files ...string) (string, string) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for _, name := range files {
			part, _ := w.CreateFormFile("file", name)
			fmt.Fprintf(part, "of %s", name)
		}
		_ = w.Close()
		return body.String(), w.FormDataContentType()
	}
	for _, tt := range []struct {
		query string
		files []string
		want  int
		at    []string
	}{
		{"", []string{"one", "/home/user/deep/two"}, 200, []string{"/home/user/one", "/home/user/deep/two"}},
		{"?path=named", []string{"other"}, 200, []string{"/home/user/named"}},
		{"?path=named", []string{"a", "b"}, 400, nil},
		{"", nil, 400, nil},
	} {
		body, kind := form(tt.files...)
		header := b.header()
		header.Set("Content-Type", kind)
		status, text, _ := b.send("POST", "/files"+tt.query, body, header)
		if status != tt.want {
			t.Errorf("%v: %d %s", tt.files, status, text)
		}
		for i, at := range tt.at {
			if _, text := get(b, at); text != "of "+tt.files[i] {
				t.Errorf("%s: %s", at, text)
			}
		}
	}
	body, kind := form("cut")
	for n := range len(body) - 1 {
		header := b.header()
		header.Set("Content-Type", kind)
		if status, text, _ := b.send("POST", "/files", body[:n], header); status != 400 && status != 200 {
			t.Fatalf("cut at %d: %d %s", n, status, text)
		}
	}
	for _, kind := range []string{"", "text/plain", "multipart/form-data", "multipart/form-data; boundary="} {
		if status, text := put(b, "x", "x", func(h http.Header) { h.Set("Content-Type", kind) }); status != 400 {
			t.Errorf("%q: %d %s", kind, status, text)
		}
	}
}

func TestGzip(t *testing.T) {
	b := newLab(t).create(`{}`)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte("unpacked"))
	_ = w.Close()
	encoded := func(name string) func(http.Header) {
		return func(h http.Header) { h.Set("Content-Encoding", name) }
	}
	if status, text := put(b, "a", packed.String(), encoded("gzip")); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if _, text := get(b, "a"); text != "unpacked" {
		t.Errorf("%q", text)
	}
	for name, body := range map[string]string{"gzip": "no gzip", "br": "x"} {
		if status, text := put(b, "b", body, encoded(name)); status != 400 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, _ := put(b, "cut", packed.String()[:12], encoded("gzip")); status == 200 {
		t.Error("half of it was taken for the whole")
	}
	header := b.header()
	header.Set("Accept-Encoding", "gzip")
	if _, text, got := b.send("GET", "/files?path=a", "", header); got.Get("Content-Encoding") != "gzip" || text == "unpacked" {
		t.Errorf("%v %q", got, text)
	}
}

func TestSignatures(t *testing.T) {
	b := newLab(t).create(`{}`)
	put(b, "s", "signed")
	now := time.Now().Unix()
	sign := func(path, operation, user, expires string) string {
		query := url.Values{"path": {path}, "signature": {signature(path+":"+operation+":"+user+":"+b.Token, expires)}}
		if user != "" {
			query.Set("username", user)
		}
		if expires != "" {
			query.Set("signature_expiration", expires)
		}
		return query.Encode()
	}
	for query, want := range map[string]string{
		sign("s", "read", "", fmt.Sprint(now-60)): "signature is already expired",
		"path=s&signature=v1_x":                   "invalid signature",
		"path=s":                                  "missing signature query parameter",
	} {
		if _, text, _ := b.send("GET", "/files?"+query, "", nil); text != fmt.Sprintf(`{"code":401,"message":%q}`, want) {
			t.Errorf("%s: %s", query, text)
		}
	}
	for query, want := range map[string]int{
		sign("s", "read", "", ""):                                   200,
		sign("s", "read", "user", ""):                               200,
		sign("s", "read", "", fmt.Sprint(now+60)):                   200,
		sign("s", "read", "", fmt.Sprint(now-60)):                   401,
		sign("s", "read", "", "soon"):                               401,
		sign("s", "write", "", ""):                                  401,
		sign("s", "read", "", "") + "&signature_expiration=9":       401,
		strings.Replace(sign("s", "read", "", ""), "v1_", "v2_", 1): 401,
		"path=s&signature=":                                         401,
		sign("s", "read", "root", ""):                               403,
	} {
		if status, text, _ := b.send("GET", "/files?"+query, "", nil); status != want {
			t.Errorf("%s: %d %s", query, status, text)
		}
	}
	octets := http.Header{"Content-Type": {"application/octet-stream"}}
	if status, text, _ := b.send("POST", "/files?"+sign("w", "write", "", ""), "x", octets); status != 200 {
		t.Errorf("%d %s", status, text)
	}
}

func call[In, Out any](b *box, method string, in *In) (*Out, error) {
	return rpc[In, Out](b, "/filesystem.Filesystem/"+method, in)
}

// TestFilesystem does the same in the home and elsewhere.
func TestFilesystem(t *testing.T) {
	b := newLab(t).create(`{}`)
	for _, dir := range []string{"/home/user/in", elsewhere(t) + "/out"} {
		made, err := call[filesystempb.MakeDirRequest, filesystempb.MakeDirResponse](b, "MakeDir", &filesystempb.MakeDirRequest{Path: dir + "/a/b"})
		if err != nil || made.GetEntry().GetPath() != dir+"/a/b" || made.GetEntry().GetType() != filesystempb.FileType_FILE_TYPE_DIRECTORY {
			t.Errorf("%v %v", made, err)
		}
		_, err = call[filesystempb.MakeDirRequest, filesystempb.MakeDirResponse](b, "MakeDir", &filesystempb.MakeDirRequest{Path: dir + "/a"})
		if connect.CodeOf(err) != connect.CodeAlreadyExists {
			t.Error(err)
		}
		put(b, dir+"/a/file", "1234")
		stat, err := call[filesystempb.StatRequest, filesystempb.StatResponse](b, "Stat", &filesystempb.StatRequest{Path: dir + "/a/file"})
		if e := stat.GetEntry(); err != nil || e.GetSize() != 4 || e.GetName() != "file" || e.GetMode() != 0o644 || e.GetPermissions() != "-rw-r--r--" || time.Since(e.GetModifiedTime().AsTime()) > time.Minute {
			t.Errorf("%v %v", stat, err)
		}
		for depth, want := range map[uint32][]string{0: {"a"}, 1: {"a"}, 2: {"a", "a/b", "a/file"}} {
			listed, err := call[filesystempb.ListDirRequest, filesystempb.ListDirResponse](b, "ListDir", &filesystempb.ListDirRequest{Path: dir, Depth: depth})
			var got []string
			for _, e := range listed.GetEntries() {
				got = append(got, strings.TrimPrefix(e.GetPath(), dir+"/"))
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s, depth %d: %v %v", dir, depth, got, err)
			}
		}
		moved, err := call[filesystempb.MoveRequest, filesystempb.MoveResponse](b, "Move", &filesystempb.MoveRequest{Source: dir + "/a/file", Destination: dir + "/new/file"})
		if err != nil || moved.GetEntry().GetPath() != dir+"/new/file" {
			t.Errorf("%v %v", moved, err)
		}
		for range 2 { // what is not there is removed already
			if _, err := call[filesystempb.RemoveRequest, filesystempb.RemoveResponse](b, "Remove", &filesystempb.RemoveRequest{Path: dir + "/a"}); err != nil {
				t.Error(err)
			}
		}
		for path, want := range map[string]connect.Code{dir + "/none": connect.CodeNotFound, dir + "/new/file": connect.CodeInvalidArgument} {
			_, err := call[filesystempb.ListDirRequest, filesystempb.ListDirResponse](b, "ListDir", &filesystempb.ListDirRequest{Path: path})
			if connect.CodeOf(err) != want {
				t.Errorf("%s: %v", path, err)
			}
		}
		_, err = call[filesystempb.StatRequest, filesystempb.StatResponse](b, "Stat", &filesystempb.StatRequest{Path: dir + "/none"})
		_, moveErr := call[filesystempb.MoveRequest, filesystempb.MoveResponse](b, "Move", &filesystempb.MoveRequest{Source: dir + "/none", Destination: dir + "/x/y"})
		if connect.CodeOf(err) != connect.CodeNotFound || connect.CodeOf(moveErr) != connect.CodeNotFound {
			t.Errorf("%v, %v", err, moveErr)
		}
	}
	for _, root := range []string{"/", "/home/user", "~"} {
		if _, err := call[filesystempb.RemoveRequest, filesystempb.RemoveResponse](b, "Remove", &filesystempb.RemoveRequest{Path: root}); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", root, err)
		}
	}
}

// TestEntries is what clients are told of links, which lead somewhere or nowhere, directories and FIFOs.
func TestEntries(t *testing.T) {
	b := newLab(t).create(`{}`)
	dir := elsewhere(t)
	const (
		unknown   = filesystempb.FileType_FILE_TYPE_UNSPECIFIED
		file      = filesystempb.FileType_FILE_TYPE_FILE
		directory = filesystempb.FileType_FILE_TYPE_DIRECTORY
		link      = filesystempb.FileType_FILE_TYPE_SYMLINK
	)
	for _, err := range []error{
		os.WriteFile(dir+"/file", nil, 0o640), os.Mkdir(dir+"/dir", 0o750), syscall.Mkfifo(dir+"/fifo", 0o600),
		os.Symlink("file", dir+"/to-file"), os.Symlink("to-file", dir+"/to-link"), os.Symlink(dir+"/dir", dir+"/to-dir"),
		os.Symlink("../none/x", dir+"/to-none"), os.Symlink("to-itself", dir+"/to-itself"),
		syscall.Mkfifo(filepath.Join(b.home(), "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	listed, err := call[filesystempb.ListDirRequest, filesystempb.ListDirResponse](b, "ListDir", &filesystempb.ListDirRequest{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]*filesystempb.EntryInfo{}
	for _, e := range listed.GetEntries() {
		entries[e.GetName()] = e
	}
	for name, want := range map[string]struct {
		is     filesystempb.FileType
		mode   uint32
		target string
	}{
		"file": {file, 0o640, ""}, "dir": {directory, 0o750, ""}, "fifo": {unknown, 0o600, ""}, "to-file": {file, 0o640, dir + "/file"},
		"to-link": {file, 0o640, dir + "/file"}, "to-dir": {directory, 0o750, dir + "/dir"},
		"to-none": {link, 0o777, "/var/tmp/none/x"}, "to-itself": {link, 0o777, dir + "/to-itself"},
	} {
		stat, err := call[filesystempb.StatRequest, filesystempb.StatResponse](b, "Stat", &filesystempb.StatRequest{Path: dir + "/" + name})
		for _, e := range []*filesystempb.EntryInfo{entries[name], stat.GetEntry()} {
			if e.GetType() != want.is || e.GetMode() != want.mode || e.GetSymlinkTarget() != want.target || err != nil {
				t.Errorf("%s: %v %v", name, e, err)
			}
		}
	}
	if size := entries["dir"].GetSize(); size == 0 {
		t.Error("a directory without a size")
	}
	if _, err := call[filesystempb.StatRequest, filesystempb.StatResponse](b, "Stat", &filesystempb.StatRequest{Path: "fifo"}); err != nil {
		t.Error(err)
	}
	home, err := call[filesystempb.ListDirRequest, filesystempb.ListDirResponse](b, "ListDir", &filesystempb.ListDirRequest{})
	if err != nil || !slices.ContainsFunc(home.GetEntries(), func(e *filesystempb.EntryInfo) bool {
		return e.GetName() == "fifo" && e.GetPermissions() == "prw-------"
	}) {
		t.Errorf("%v %v", home, err)
	}
}

// A tenant gives files times that the protocol cannot say; what has them can be told of all the same.
func TestTimesBeyondTheProtocol(t *testing.T) {
	for _, at := range []time.Time{time.Unix(1<<50, 0), time.Unix(-1<<50, 0), time.UnixMilli(math.MinInt64)} {
		if _, err := protojson.Marshal(told(entry{Entry: files.Entry{Name: "f", Type: "file", ModTime: at}, at: "/tmp/f"})); err != nil {
			t.Errorf("%d: %v", at.Unix(), err)
		}
	}
}

func TestEntriesOfAHostileFind(t *testing.T) {
	for line, want := range map[string]bool{
		"f\t644\t4\t1.5\tuser\tuser\t/a/b\t": true, "l\t777\t4\t1\tu\tg\t/a\ttarget": true,
		"": false, "f": false, "f\tx\t4\t1\tu\tg\t/a\t": false, "f\t644\t-\t1\tu\tg\t/a\t": false, "f\t644\t4\tx\tu\tg\t/a\t": false, "f\t7777777\t4\t1\tu\tg\t/a\t": false,
	} {
		if e, ok := parseEntry(line); ok != want {
			t.Errorf("%q: %+v", line, e)
		}
	}
}

// The programs that resolve links may be the tenant's.
func TestLinksOfAHostileFind(t *testing.T) {
	bin, dir := t.TempDir(), elsewhere(t)
	for name, script := range map[string]string{
		"find":     "if [ \"$1\" = -L ]; then printf 'f\\t644\\t/other\\0f\\t644\\0'; else exec " + lookPath(t, "find") + " \"$@\"; fi",
		"realpath": "printf '/x\\0/y\\0'",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := newLab(t).create(`{}`)
	if err := os.Symlink("to", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	stat, err := call[filesystempb.StatRequest, filesystempb.StatResponse](b, "Stat", &filesystempb.StatRequest{Path: dir + "/link"})
	if e := stat.GetEntry(); err != nil || e.GetType() != filesystempb.FileType_FILE_TYPE_SYMLINK || e.GetSymlinkTarget() != dir+"/to" {
		t.Errorf("%v %v", stat, err)
	}
}

func lookPath(t *testing.T, program string) string {
	t.Helper()
	at, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// form makes a form of files of so many bytes each.
func form(t *testing.T, size int, names ...string) (text, kind string) {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, name := range names {
		part, err := w.CreateFormFile("file", name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write(bytes.Repeat([]byte{'x'}, size))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return body.String(), w.FormDataContentType()
}

// TestAFormWhoseWritersLeave has programs write a form's files that read nothing of them, as a tenant can have it by PATH:
// what is left of one file is not read by two at once.
func TestAFormWhoseWritersLeave(t *testing.T) {
	dir, bin := elsewhere(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "cat"), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := newLab(t).create(`{}`)
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("%s/%d", dir, i))
	}
	text, kind := form(t, 300_000, names...)
	header := b.header()
	header.Set("Content-Type", kind)
	status, answer, _ := b.send("POST", "/files", text, header)
	if status != http.StatusOK || strings.Count(answer, `"name"`) != len(names) {
		t.Errorf("%d %.300s", status, answer)
	}
}

// TestABodyWhoseWriterHangs leaves a program that takes nothing alone with a body that is cut off.
func TestABodyWhoseWriterHangs(t *testing.T) {
	dir, bin := elsewhere(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "cat"), []byte("#!/bin/sh\nsleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := newLab(t).create(`{}`)
	req, err := http.NewRequestWithContext(t.Context(), "POST", b.url+"/files?path="+dir+"/x", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = b.header()
	req.Header.Set("Content-Type", "application/octet-stream")
	req.ContentLength = 2 // and never comes
	if res, err := http.DefaultClient.Do(req); err == nil {
		_ = res.Body.Close()
		t.Errorf("%d", res.StatusCode)
	}
	waittest.Until(t, "the program that writes has ended", func() bool {
		return len(list(b)) == 0
	})
}

// TestABodyForASandboxThatIsPausedMeanwhile answers, although the program that writes the file neither takes more nor ends.
func TestABodyForASandboxThatIsPausedMeanwhile(t *testing.T) {
	dir := elsewhere(t)
	l := newLab(t)
	b := l.create(`{}`)
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", b.url+"/files?path="+dir+"/x", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = b.header()
	req.Header.Set("Content-Type", "application/octet-stream")
	go func() {
		_, _ = more.Write(make([]byte, 128<<10))
		if !waittest.Comes(func() bool { return holdsBytes(dir+"/x", 64<<10) }) {
			t.Error("nothing is written")
		}
		l.call(annesKey, "POST", "/sandboxes/"+b.ID+"/pause", "")
		_, _ = more.Write(make([]byte, 128<<10)) // the handler may have left
		_ = more.Close()
	}()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusConflict {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

// TestAnUploadWhoseDirectoryIsRemoved does not report a file that it has lost.
func TestAnUploadWhoseDirectoryIsRemoved(t *testing.T) {
	b := newLab(t).create(`{}`)
	dir := filepath.Join(b.home(), "d")
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", b.url+"/files?path=d/x", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = b.header()
	req.Header.Set("Content-Type", "application/octet-stream")
	go func() {
		_, _ = more.Write([]byte("the first bytes"))
		begun := func() bool {
			found, _ := os.ReadDir(dir)
			return len(found) == 1
		}
		if !waittest.Comes(begun) {
			t.Error("nothing is written")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		_ = more.Close()
	}()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is there again: %v", err)
	}
}

// holdsBytes reports whether a file has at least so many.
func holdsBytes(name string, least int64) bool {
	info, err := os.Stat(name)
	return err == nil && info.Size() >= least
}

// TestFormsOfManyNames sends more names than can be told of.
func TestFormsOfManyNames(t *testing.T) {
	b := newLab(t, func(cfg *Config) { cfg.MaxRequest = 1 << 10 }).create(`{}`)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("name", i))
	}
	text, kind := form(t, 1, names...)
	header := b.header()
	header.Set("Content-Type", kind)
	if status, answer, _ := b.send("POST", "/files", text, header); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %.300s", status, answer)
	}
}
