package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// TestBadFileRequests sends what has to be refused before the service is asked.
func TestBadFileRequests(t *testing.T) {
	server := serveFake(t, &fakeService{})
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

// answered sends a request and returns its answer, or fails the test.
func answered(t *testing.T, service *fakeService, x exchange) string {
	t.Helper()
	response, err := http.DefaultClient.Do(x.request(t, serveFake(t, service).URL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("status %d: %s %v", response.StatusCode, body, err)
	}
	return strings.TrimSpace(string(body))
}

// TestReadAnswers holds the answers against the documents' fields, byte by byte.
func TestReadAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		result sandbox.ReadResult
		want   string
	}{
		{"text", sandbox.ReadResult{Type: sandbox.ReadText, Content: []byte("é\n"), Bytes: 3, TotalLines: 1, OutputLines: 1, ResolvedPath: "/u/a", DisplayPath: "~/a"},
			`{"type":"text","content":"é\n","bytes":3,"totalLines":1,"outputLines":1,"truncated":false,"truncatedBy":null,"resolvedPath":"/u/a","displayPath":"~/a"}`},
		{"text that was cut", sandbox.ReadResult{Type: sandbox.ReadText, Truncated: true, TruncatedBy: "bytes"},
			`{"type":"text","content":"","bytes":0,"totalLines":0,"outputLines":0,"truncated":true,"truncatedBy":"bytes","resolvedPath":"","displayPath":""}`},
		{"text and a path that are not UTF-8", sandbox.ReadResult{Type: sandbox.ReadText, Content: []byte("a\xff\xfe\xe2\x82z"), DisplayPath: "~/\xe9"},
			`{"type":"text","content":"a` + "\uFFFD\uFFFD\uFFFD\uFFFD" + `z","bytes":0,"totalLines":0,"outputLines":0,"truncated":false,"truncatedBy":null,"resolvedPath":"","displayPath":"~/` + "\uFFFD" + `"}`},
		{"image", sandbox.ReadResult{Type: sandbox.ReadImage, Content: []byte("\x89PNG"), Bytes: 4, MimeType: "image/png", TotalLines: 7},
			`{"type":"image","content":"iVBORw==","bytes":4,"mimeType":"image/png","resolvedPath":"","displayPath":""}`},
		{"bytes", sandbox.ReadResult{Type: sandbox.ReadBinary, Content: []byte("text"), Bytes: 4},
			`{"type":"binary","content":"dGV4dA==","bytes":4,"resolvedPath":"","displayPath":""}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			service := &fakeService{fakeFiles: fakeFiles{read: func(sandbox.ReadRequest) (sandbox.ReadResult, error) { return tt.result, nil }}}
			if got := answered(t, service, exchange{route: "POST /v1/sandboxes/a/read", body: `{"path":"a"}`}); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestEntriesHaveTheirNameAsBytes(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 0, time.FixedZone("somewhere", 3600))
	service := &fakeService{fakeFiles: fakeFiles{listDir: func(path string) (sandbox.Listing, error) {
		return sandbox.Listing{Path: path, Truncated: true, Entries: []sandbox.Entry{
			{Name: "a", Type: "file", Size: 5, Mode: 0o4, ModTime: at}, {Name: "caf\xe9", Type: "directory", Mode: 0o1755, ModTime: at},
		}}, nil
	}}}
	got := answered(t, service, exchange{route: "POST /v1/sandboxes/a/list", body: `{"pathBase64":"/w=="}`})
	want := `{"path":"` + "\uFFFD" + `","entries":[` +
		`{"name":"a","type":"file","size":5,"mode":"0004","mtime":"2026-01-02T14:04:05Z"},` +
		`{"name":"caf` + "\uFFFD" + `","nameBase64":"Y2Fm6Q==","type":"directory","size":0,"mode":"1755","mtime":"2026-01-02T14:04:05Z"}],"truncated":true}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	empty := &fakeService{fakeFiles: fakeFiles{listDir: func(string) (sandbox.Listing, error) { return sandbox.Listing{}, nil }}}
	if got := answered(t, empty, exchange{route: "POST /v1/sandboxes/a/list", body: `{"path":"."}`}); got != `{"path":"","entries":[],"truncated":false}` {
		t.Error(got)
	}
}

// TestSandboxesShowWhatTheyHold holds that what is registered reaches the facade, and comes back.
func TestSandboxesShowWhatTheyHold(t *testing.T) {
	var asked sandbox.Registration
	service := &fakeService{put: func(_ string, r sandbox.Registration) (sandbox.Sandbox, bool, error) {
		asked = r
		box := testBox(t)
		box.SkillsDir = r.SkillsDir
		return box, false, nil
	}}
	got := answered(t, service, exchange{route: "PUT /v1/sandboxes/a", body: `{"userId":"alice","permissions":{"workingDir":"/home/p","writeDirs":["/mnt/data"],
		"readDirs":["/a","/b"],"network":true,"events":true,"appId":"crm"},"mounts":[{"source":"/s","target":"/t","readOnly":true}],"skillsDir":"/skills"}`})
	want := sandbox.Registration{
		UserID: "alice", WorkingDir: "/home/p", WriteDirs: []string{"/mnt/data"}, ReadDirs: []string{"/a", "/b"}, Network: true, Events: true,
		AppID: "crm", Mounts: []sandbox.MountRequest{{Source: "/s", Target: "/t", ReadOnly: true}}, SkillsDir: "/skills",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("want (-), asked (+):\n%s", diff)
	}
	shown := `"permissions":{"workingDir":"/home/project","writeDirs":["/mnt/data"],"readDirs":[],"network":true,"events":false,"appId":"crm"},` +
		`"mounts":[{"source":"/data/users/alice/data","target":"/mnt/data","readOnly":false}],"skillsDir":"/skills"`
	if !strings.Contains(got, shown) {
		t.Errorf("got %s\nwant %s", got, shown)
	}
}

// TestGrantsReachTheFacade asks for the same in an exec and an explanation.
func TestGrantsReachTheFacade(t *testing.T) {
	const grants = `"permissions":["@workspace","@read:/a b"],"home":"/home/x"`
	want := []string{"@workspace", "@read:/a b", "/home/x"}
	service := &fakeService{
		exec: func(_ context.Context, _ string, r sandbox.Request, _ dockerexec.Output) (sandbox.Result, error) {
			if diff := cmp.Diff(want, append(r.Permissions, r.Home)); diff != "" {
				t.Errorf("exec: want (-), got (+):\n%s", diff)
			}
			return ended(0), nil
		},
		explain: func(r sandbox.Confinement) (sandbox.Explanation, error) {
			if diff := cmp.Diff(want, append(r.Permissions, r.Home)); diff != "" {
				t.Errorf("explain: want (-), got (+):\n%s", diff)
			}
			return sandbox.Explanation{User: "alice", Warm: true}, nil
		},
	}
	answered(t, service, exchange{route: "POST /v1/sandboxes/a/exec", body: `{"command":"x",` + grants + `}`})
	var got types.Explanation
	text := answered(t, service, exchange{route: "POST /v1/sandboxes/a/explain", body: `{` + grants + `}`})
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.UserID != "alice" || !got.Warm || got.Places == nil {
		t.Errorf("%s %v", text, err)
	}
}
