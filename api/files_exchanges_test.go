package api

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// fileExchanges are those of read and write.
func fileExchanges() []exchange {
	reads := func(r sandbox.ReadResult, err error) fakeService {
		return fakeService{fakeFiles: fakeFiles{read: func(sandbox.ReadRequest) (sandbox.ReadResult, error) { return r, err }}}
	}
	writes := func(err error) fakeService {
		return fakeService{fakeFiles: fakeFiles{write: func(sandbox.WriteRequest) (sandbox.Written, error) { return sandbox.Written{Bytes: 2}, err }}}
	}
	text := sandbox.ReadResult{Type: sandbox.ReadText, Content: []byte("a\xff\n"), Bytes: 3, TotalLines: 9, OutputLines: 1, Truncated: true, TruncatedBy: "lines"}
	const box = "/v1/sandboxes/agent-7"
	const read, write = "POST " + box + "/read", "POST " + box + "/write"
	const path = `{"path":"~/a.txt"}`
	return []exchange{
		{name: "text", route: read, body: `{"path":"a","offset":1,"limit":2,"raw":false}`, service: reads(text, nil), status: 200},
		{name: "whole text", route: read, body: path, service: reads(sandbox.ReadResult{Type: sandbox.ReadText}, nil), status: 200},
		{name: "image", route: read, body: path, service: reads(sandbox.ReadResult{Type: sandbox.ReadImage, MimeType: "image/png"}, nil), status: 200},
		{name: "bytes", route: read, body: `{"pathBase64":"/w==","binary":true}`, service: reads(sandbox.ReadResult{Type: sandbox.ReadBinary, Content: []byte{0xff}}, nil), status: 200},
		{name: "offset 0", route: read, body: `{"path":"a","offset":0}`, status: 400, breaks: true},
		{name: "limit -1", route: read, body: `{"path":"a","limit":-1}`, status: 400, breaks: true},

		{name: "text", route: write, body: `{"path":"~/a","content":"","append":true}`, service: writes(nil), status: 200},
		{name: "bytes", route: write, body: `{"path":"~/a","content":"AP8=","encoding":"base64","exclusive":true}`, service: writes(nil), status: 200},
		{name: "append and exclusive", route: write, body: `{"path":"~/a","content":"","append":true,"exclusive":true}`, service: writes(classed(cerrdefs.ErrInvalidArgument)), status: 400, breaks: true},
		{name: "unknown encoding", route: write, body: `{"path":"~/a","content":"","encoding":"hex"}`, status: 400, breaks: true},
		{name: "too large", route: write, body: `{"path":"~/a","content":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "there already", route: write, body: `{"path":"~/a","content":""}`, service: writes(classed(cerrdefs.ErrConflict)), status: 409},
		{name: "disk full", route: write, body: `{"path":"~/a","content":""}`, service: writes(classed(errs.ErrNoSpace)), status: 507},
	}
}

// otherExchanges are those of every call on files and of explain that has nothing of its own, and the
// faults that all share.
func otherExchanges() []exchange {
	entry := sandbox.Entry{Name: "caf\xe9", Type: "file", Size: 3, Mode: 0o644, ModTime: time.Date(2026, 1, 2, 15, 4, 5, 6, time.FixedZone("somewhere", 3600))}
	others := func(err error) fakeService {
		return fakeService{
			fakeFiles: fakeFiles{
				listDir: func(string) (sandbox.Listing, error) {
					return sandbox.Listing{Path: "~/", Entries: []sandbox.Entry{entry}}, err
				},
				stat:   func(string) (sandbox.Entry, error) { return entry, err },
				mkdir:  func(string, bool) error { return err },
				move:   func(sandbox.MoveRequest) error { return err },
				remove: func(string, bool) error { return err },
			},
			explain: func(sandbox.Confinement) (sandbox.Explanation, error) {
				return sandbox.Explanation{
					User: "alice", WorkingDir: "/home", Places: []sandbox.Place{{Path: "/home", Mode: "readOnly", Why: "x"}},
					Fingerprint: string(dockerexec.Spec{}.Fingerprint()),
				}, err
			},
		}
	}
	const box, path = "/v1/sandboxes/agent-7", `{"path":"~/a.txt"}`
	exchanges := []exchange{
		{name: "nothing", route: "POST " + box + "/explain", body: `{}`, service: others(nil), status: 200},
	}
	for _, x := range []struct{ call, body string }{
		{"list", path}, {"stat", path}, {"mkdir", `{"path":"~/a","parents":true}`}, {"remove", `{"path":"~/a","recursive":true}`},
		{"move", `{"from":"~/a","toBase64":"/w==","overwrite":true}`}, {"explain", `{"permissions":["@read:/mnt/data"],"home":"/tmp"}`},
	} {
		route := "POST " + box + "/" + x.call
		exchanges = append(exchanges,
			exchange{name: "good", route: route, body: x.body, service: others(nil), status: 200},
			exchange{name: "unknown key", route: route, body: `{"path":"a","depth":1}`, status: 400, breaks: true},
			exchange{name: "refused", route: route, body: x.body, service: others(classed(cerrdefs.ErrPermissionDenied)), status: 403},
			exchange{name: "not there", route: route, body: x.body, service: others(classed(cerrdefs.ErrNotFound)), status: 404},
			exchange{name: "stopping", route: route, body: x.body, service: others(classed(cerrdefs.ErrUnavailable)), status: 503},
			exchange{name: "broken", route: route, body: x.body, service: others(context.DeadlineExceeded), status: 502},
		)
	}
	for _, call := range []string{"read", "write", "list", "stat", "mkdir", "remove"} {
		content := ""
		if call == "write" {
			content = `,"content":""`
		}
		exchanges = append(exchanges,
			exchange{name: "no path", route: "POST " + box + "/" + call, body: `{"path":""` + content + `}`, status: 400, breaks: true},
			exchange{name: "two paths", route: "POST " + box + "/" + call, body: `{"path":"a","pathBase64":"YQ=="` + content + `}`, status: 400, breaks: true})
	}
	return exchanges
}

// transferExchanges are those of uploads and downloads.
func transferExchanges(t *testing.T) []exchange {
	uploads := func(err error) fakeService {
		return fakeService{fakeFiles: fakeFiles{upload: func(sandbox.UploadRequest) (sandbox.Written, error) { return sandbox.Written{Bytes: 2}, err }}}
	}
	downloads := func(err error) fakeService {
		return fakeService{fakeFiles: fakeFiles{download: func(string) (sandbox.Download, error) { return openFile(t, "a,b\n1,2\n"), err }}}
	}
	const files = "/v1/sandboxes/agent-7/files"
	const put, get, head = "PUT " + files, "GET " + files, "HEAD " + files
	exchanges := []exchange{
		{name: "all", route: put + "?path=~%2Fa&exclusive=true", kind: octets, body: "a", service: uploads(nil), status: 200},
		{name: "empty", route: put + "?path=a", service: uploads(nil), status: 200},
		{name: "JSON", route: put + "?path=a", body: "{}", status: 400, breaks: true},
		{name: "exclusive is a word", route: put + "?path=a&exclusive=yes", kind: octets, body: "a", status: 400, breaks: true},
		{name: "there already", route: put + "?path=a", kind: octets, body: "a", service: uploads(classed(cerrdefs.ErrConflict)), status: 409},
		{name: "disk full", route: put + "?path=a", kind: octets, body: "a", service: uploads(classed(errs.ErrNoSpace)), status: 507},
		{name: "no path", route: put, kind: octets, body: "a", status: 400, breaks: true},
	}
	for _, route := range []string{get, head} {
		exchanges = append(exchanges,
			exchange{name: "all", route: route + "?path=a", service: downloads(nil), status: 200},
			exchange{name: "no path", route: route, status: 400, breaks: true},
			exchange{name: "refused", route: route + "?path=a", service: fakeService{fakeFiles: fakeFiles{download: func(string) (sandbox.Download, error) {
				return sandbox.Download{}, classed(cerrdefs.ErrPermissionDenied)
			}}}, status: 403},
		)
	}
	return exchanges
}

// openFile is a file to download, as the facade opens it.
func openFile(t *testing.T, content string) sandbox.Download {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data.csv")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return sandbox.Download{
		ReadSeekCloser: file, Name: "data.csv", Size: int64(len(content)), ModTime: time.Date(2026, 1, 2, 15, 4, 5, 6, time.UTC),
	}
}
