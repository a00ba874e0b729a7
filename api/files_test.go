package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// TestBadFileRequests sends what has to be refused.
func TestBadFileRequests(t *testing.T) {
	server := newLab(t, nil).serve()
	const box = "/v1/sandboxes/a/"
	for _, tt := range []struct{ route, body, message string }{
		{"POST " + box + "read", `{"path":"a","offset":0}`, "offset 0 is less than 1"},
		{"POST " + box + "read", `{"path":"a","offset":-3}`, "offset -3 is less than 1"},
		{"POST " + box + "read", `{"path":"a","limit":0}`, "limit 0 is less than 1"},
		{"POST " + box + "read", `{"path":"a","limit":1.5}`, "limit: want a whole number, got 1.5"},
		{"POST " + box + "read", `{"path":"a","offset":99999999999999999999}`, "offset: 99999999999999999999 is out of range"},
		{"POST " + box + "read", `{"path":7}`, "path: want a string, got a number"},
		{"POST " + box + "read", `{}`, "path is empty"},
		{"POST " + box + "read", `{"path":"a","Path":"b"}`, "Path: unknown key"},
		{"POST " + box + "read", `{"path":"a","path":"b"}`, "path: is given more than once"},
		{"POST " + box + "read", "{\"path\":\"a\\u001b\"}", `path has to be given as pathBase64: cannot use path "a\x1b": it holds the control character 0x1b at byte 1`},
		{"POST " + box + "read", `{"pathBase64":"AA=="}`, "NUL"},
		{"POST " + box + "read", `{"pathBase64":"?"}`, "pathBase64 is not base64"},
		{"POST " + box + "write", `{"path":"a","content":"?","encoding":"base64"}`, "content is not base64"},
		{"POST " + box + "write", `{"path":"a","content":"","encoding":"hex"}`, `the encoding "hex" of content`},
		{"POST " + box + "write", `{"path":"a","content":7}`, "content: want a string, got a number"},
		{"POST " + box + "list", `{"path":"a","pathBase64":"YQ=="}`, "path and pathBase64 are both set"},
		{"POST " + box + "stat", ``, "the body is empty"},
		{"POST " + box + "mkdir", `{"path":"a","mode":"0777"}`, "mode: unknown key"},
		{"POST " + box + "move", `{"from":"a"}`, "to is empty"},
		{"POST " + box + "move", `{"to":"a"}`, "from is empty"},
		{"POST " + box + "move", `{"from":"a","fromBase64":"YQ==","to":"b"}`, "from and fromBase64 are both set"},
		{"POST " + box + "remove", `{"path":"a","recursive":"yes"}`, "recursive: want true or false, got a string"},
		{"POST " + box + "explain", `{"permissions":"@network"}`, "permissions: want a list of strings, got a string"},
		{"GET " + box + "files", "", "path is missing"},
		{"GET " + box + "files?path=", "", "path is missing or empty"},
		{"GET " + box + "files?path=a&path=b", "", "path is given 2 times"},
		{"GET " + box + "files?path=a&exclusive=true", "", `unknown parameter "exclusive"`},
		{"GET " + box + "files?path=%zz", "", "the query cannot be read"},
		{"PUT " + box + "files?path=a&append=true", "", `unknown parameter "append"`},
		{"PUT " + box + "files?path=a&exclusive=1", "", `exclusive "1"`},
		{"PUT " + box + "files?path=a", "{}", `Content-Type "application/json"`},
	} {
		t.Run(tt.route+" "+tt.body, func(t *testing.T) {
			failure, status := refused(t, exchange{route: tt.route, body: tt.body}.request(t, server.URL))
			if status != 400 || failure.Kind != types.Invalid || !strings.Contains(failure.Message, tt.message) {
				t.Errorf("%d %+v, want %q", status, failure, tt.message)
			}
		})
	}
}

// TestReadAnswers holds the answers' fields against the documents.
func TestReadAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		result files.ReadResult
		want   string
	}{
		{"text", files.ReadResult{IsText: true, Content: []byte("é\n"), Bytes: 3, TotalLines: 1, OutputLines: 1, ResolvedPath: "/u/a", DisplayPath: "~/a"},
			`{"type":"text","content":"é\n","bytes":3,"totalLines":1,"outputLines":1,"truncated":false,"truncatedBy":null,"resolvedPath":"/u/a","displayPath":"~/a"}`},
		{"text that was cut", files.ReadResult{IsText: true, Truncated: true, TruncatedBy: "bytes"},
			`{"type":"text","content":"","bytes":0,"totalLines":0,"outputLines":0,"truncated":true,"truncatedBy":"bytes","resolvedPath":"","displayPath":""}`},
		{"text and a path that are not UTF-8", files.ReadResult{IsText: true, Content: []byte("a\xff\xfe\xe2\x82z"), DisplayPath: "~/\xe9"},
			`{"type":"text","content":"a` + "\uFFFD\uFFFD\uFFFD\uFFFD" + `z","bytes":0,"totalLines":0,"outputLines":0,"truncated":false,"truncatedBy":null,"resolvedPath":"","displayPath":"~/` + "\uFFFD" + `"}`},
		{"image", files.ReadResult{Content: []byte("\x89PNG"), Bytes: 4, MimeType: "image/png", TotalLines: 7},
			`{"type":"image","content":"iVBORw==","bytes":4,"mimeType":"image/png","resolvedPath":"","displayPath":""}`},
		{"bytes", files.ReadResult{Content: []byte("text"), Bytes: 4},
			`{"type":"binary","content":"dGV4dA==","bytes":4,"resolvedPath":"","displayPath":""}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := jsonText(t, readResult(tt.result)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestReadsOfFiles reads what is there, each part of it that may be asked for.
func TestReadsOfFiles(t *testing.T) {
	l := newLab(t, nil)
	path := l.File("a", "1\n2\n3\n")
	l.File("caf\xe9", "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")
	text := func(content string, bytes, total, lines int, cut string) string {
		truncated := cut != "null"
		return fmt.Sprintf(`{"content":%q,"type":"text","bytes":%d,"totalLines":%d,"outputLines":%d,"truncated":%t,"truncatedBy":%s,"resolvedPath":%q,"displayPath":"~/a"}`,
			content, bytes, total, lines, truncated, cut, path)
	}
	for body, want := range map[string]string{
		`{"path":"a"}`:                      text("1\n2\n3\n", 6, 3, 3, "null"),
		`{"path":"~/a","raw":true}`:         text("1\n2\n3\n", 6, 3, 3, "null"),
		`{"path":"a","offset":2,"limit":1}`: text("2\n", 6, 3, 1, `"lines","next":{"offset":3,"skipBytes":0},"notice":"Lines 2 to 2 of 3 are shown. Read on with offset 3."`),
		`{"path":"a","binary":true}`:        fmt.Sprintf(`{"content":"MQoyCjMK","type":"binary","bytes":6,"resolvedPath":%q,"displayPath":"~/a"}`, path),
		`{"pathBase64":"Y2Fm6Q=="}`:         `{"content":"R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAkQBADs=","type":"image","bytes":35,"mimeType":"image/gif","resolvedPath":"` + filepath.Dir(path) + "/caf\uFFFD" + `","displayPath":"~/caf` + "\uFFFD" + `"}`,
	} {
		if got := l.answered(exchange{route: "POST /v1/sandboxes/a/read", body: body}); got != want {
			t.Errorf("%s: got  %s\nwant %s", body, got, want)
		}
	}
}

func TestEntriesHaveTheirNameAsBytes(t *testing.T) {
	l := newLab(t, nil)
	path, at := l.File("a", "12345"), time.Date(2026, 1, 2, 15, 4, 5, 0, time.FixedZone("somewhere", 3600))
	odd := filepath.Join(filepath.Dir(path), "caf\xe9")
	if err := errors.Join(os.Mkdir(odd, 0o700), os.Chmod(path, 0o4), os.Chmod(odd, 0o1755|os.ModeSticky), os.Chtimes(path, at, at), os.Chtimes(odd, at, at)); err != nil {
		t.Fatal(err)
	}
	got := l.answered(exchange{route: "POST /v1/sandboxes/a/list", body: `{"path":"."}`})
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	want := `{"path":"~","entries":[` +
		`{"name":"a","type":"file","size":5,"mode":"0004","mtime":"2026-01-02T14:04:05Z"},` +
		fmt.Sprintf(`{"name":"caf`+"\uFFFD"+`","nameBase64":"Y2Fm6Q==","type":"directory","size":%d,"mode":"0755","mtime":"2026-01-02T14:04:05Z"}],"truncated":false}`, size(odd))
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := l.answered(exchange{route: "POST /v1/sandboxes/a/list", body: `{"pathBase64":"Y2Fm6Q=="}`}); got != `{"path":"~/caf`+"\uFFFD"+`","entries":[],"truncated":false}` {
		t.Error(got)
	}
}

func TestMountPointsHaveOnlyAName(t *testing.T) {
	got := withMount(t).answered(exchange{route: "POST /v1/sandboxes/a/list", body: `{"path":"~"}`})
	if want := `{"name":"mnt","type":"mount","size":0,"mode":"0000","mtime":"0001-01-01T00:00:00Z"}`; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// Whoever owns a file gives it any time, and the answer is one all the same.
func TestTimesThatAnAnswerCannotHave(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // tmpfs keeps all times; other file systems have a last one
	l := newLab(t, nil)
	path := l.File("a", "")
	const year10000 = 253402300800
	for _, tt := range []struct {
		seconds int64
		want    string
		http    string
	}{
		{year10000 - 1, "9999-12-31T23:59:59Z", "Fri, 31 Dec 9999 23:59:59 GMT"},
		{year10000, "9999-12-31T23:59:59Z", "Fri, 31 Dec 9999 23:59:59 GMT"},
		{math.MaxInt64, "9999-12-31T23:59:59Z", "Fri, 31 Dec 9999 23:59:59 GMT"},
		{1, "1970-01-01T00:00:01Z", "Thu, 01 Jan 1970 00:00:01 GMT"},
		{-62135596799, "0001-01-01T00:00:01Z", "Mon, 01 Jan 0001 00:00:01 GMT"},
		{-62167219201, "0001-01-01T00:00:00Z", ""},
		{math.MinInt64, "0001-01-01T00:00:00Z", ""},
	} {
		at := unix.Timespec{Sec: tt.seconds}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, 0); err != nil {
			t.Fatal(err)
		}
		entry := `{"name":"a","type":"file","size":0,"mode":"0644","mtime":"` + tt.want + `"}`
		if got := l.answered(exchange{route: "POST /v1/sandboxes/a/stat", body: `{"path":"a"}`}); got != entry {
			t.Errorf("%d: got  %s\nwant %s", tt.seconds, got, entry)
		}
		if got, want := l.answered(exchange{route: "POST /v1/sandboxes/a/list", body: `{"path":"."}`}), `{"path":"~","entries":[`+entry+`],"truncated":false}`; got != want {
			t.Errorf("%d: got  %s\nwant %s", tt.seconds, got, want)
		}
		out, req := httptest.NewRecorder(), exchange{route: "HEAD /v1/sandboxes/a/files?path=a"}.request(t, "http://sandboxd")
		req.Body = http.NoBody
		l.handler().ServeHTTP(out, req)
		if got := out.Header().Get("Last-Modified"); got != tt.http || out.Code != http.StatusOK {
			t.Errorf("%d: status %d, %q, want %q", tt.seconds, out.Code, got, tt.http)
		}
	}
}

// TestSandboxesShowWhatTheyHold holds that what is registered is held, and comes back.
func TestSandboxesShowWhatTheyHold(t *testing.T) {
	l := newLab(t, nil)
	source := filepath.Join(l.Dir, "users", "alice", "data")
	got := l.answered(exchange{route: "PUT /v1/sandboxes/a", body: fmt.Sprintf(`{"userId":"alice","permissions":{"workingDir":"/home/p","writeDirs":["/mnt/data"],
		"readDirs":["/mnt/data/a","/home/b"],"network":true,"events":true,"processes":["web"],"secrets":["github","npm"],"appId":"crm"},"mounts":[{"source":%q,"target":"/mnt/data"},{"source":%q,"target":"/mnt/fixed","readOnly":true}],"skillsDir":%q}`, source, source, source)})
	shown := `"permissions":{"workingDir":"/home/p","writeDirs":["/mnt/data"],"readDirs":["/mnt/data/a","/home/b"],"network":true,"events":true,"processes":["web"],"secrets":["github","npm"],"appId":"crm"},` +
		fmt.Sprintf(`"mounts":[{"source":%q,"target":"/mnt/data","readOnly":false},{"source":%q,"target":"/mnt/fixed","readOnly":true}],"skillsDir":%q`, source, source, source)
	if !strings.Contains(got, shown) {
		t.Errorf("got %s\nwant %s", got, shown)
	}
	if again := l.answered(exchange{route: "GET /v1/sandboxes/a"}); again != got {
		t.Errorf("got %s\nwant %s", again, got)
	}
	got = l.answered(exchange{route: "PUT /v1/sandboxes/b", body: `{"userId":"alice"}`})
	if !strings.Contains(got, `"permissions":{"workingDir":"/home","writeDirs":[],"readDirs":[],"network":false,"events":false},"mounts":[],"createdAt":`) {
		t.Errorf("got %s", got)
	}
}

// TestGrantsDecide asks for the same in an exec and an explanation.
func TestGrantsDecide(t *testing.T) {
	const grants = `"permissions":["@workspace","@write:/home/a b"],"home":"/home/a b"`
	home := make(chan string, 1)
	var fingerprint string
	l := newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		c.Started()
		fingerprint = string(spec.Fingerprint())
		for _, variable := range c.Env {
			if value, is := strings.CutPrefix(variable, "HOME="); is {
				home <- value
			}
		}
		return warm.Result{}, nil
	})
	l.answered(exchange{route: "POST /v1/sandboxes/a/exec", body: `{"command":"x",` + grants + `}`})
	if got := <-home; got != "/home/a b" {
		t.Errorf("HOME is %q", got)
	}
	var got types.Explanation
	text := l.answered(exchange{route: "POST /v1/sandboxes/a/explain", body: `{` + grants + `}`})
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.UserID != "alice" || got.Home != "/home/a b" || got.Fingerprint != fingerprint || got.Warm || len(got.Places) == 0 {
		t.Errorf("%s %v", text, err)
	}
	for _, place := range got.Places {
		if place.Path == "/home/a b" && place.Mode != "writable" || place.Path == "/home" && place.Mode != "writable" {
			t.Errorf("%+v", place)
		}
	}
	warm := newLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{List: []dockerexec.Summary{{Name: "x", User: "alice", State: "idle", Fingerprint: dockerexec.Fingerprint(fingerprint)}}}
	})
	if text := warm.answered(exchange{route: "POST /v1/sandboxes/a/explain", body: `{` + grants + `}`}); strings.Contains(text, fingerprint) == strings.Contains(text, `"warm":false`) {
		t.Errorf("%s", text)
	}
}

// TestFilesThatAreReadHaveShares has a caller read a file again and again without taking the answers: they
// take its share of the memory, and no more.
func TestFilesThatAreReadHaveShares(t *testing.T) {
	l := newLab(t, nil)
	server := l.serve()
	if _, err := l.Write(t.Context(), "a", files.WriteRequest{Path: "~/project/large", Body: strings.NewReader("")}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(sandboxtest.Home(l.Dir, "alice"), "project/large")
	if err := os.Truncate(name, 16<<20); err != nil {
		t.Fatal(err)
	}
	const most = 4 // twice that size each, of a quarter of all
	for n := 0; ; n++ {
		answer := untaken(t, server, "read", `{"path":"~/project/large","binary":true}`)
		status := answer.StatusCode
		if status == http.StatusTooManyRequests {
			break
		}
		if status != http.StatusOK || n == most {
			t.Fatalf("%d after %d that hold their answers", status, n)
		}
	}
}

// untaken has the answer to a call of sandbox a of which only the header is taken; the rest can be, until the test ends.
func untaken(t *testing.T, server *httptest.Server, call, body string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST /v1/sandboxes/a/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", call, len(body), body); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}
