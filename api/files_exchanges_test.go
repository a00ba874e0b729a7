package api

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// withFiles is a lab with files in alice's home and in a /tmp of hers.
func withFiles(t *testing.T) *lab {
	tmp := t.TempDir()
	l := newLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{TmpFunc: func() (string, error) { return tmp, nil }}
	})
	l.File("a", "a\xff\n")
	l.File("a.txt", strings.Repeat("line\n", 9))
	l.File("pixel.png", "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;")
	l.File("caf\xe9", "")
	if err := l.Mkdir(t.Context(), "a", "~/dir", false); err != nil {
		t.Fatal(err)
	}
	return l
}

// withMount is a lab in whose alice's home another file system is mounted.
func withMount(t *testing.T) *lab {
	l := newLab(t, nil)
	dir := filepath.Join(filepath.Dir(l.File("a", "")), "mnt")
	if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return l
}

// fileExchanges are those of read and write.
func fileExchanges(t *testing.T) []exchange {
	const box = "/v1/sandboxes/agent-7"
	const read, write = "POST " + box + "/read", "POST " + box + "/write"
	const path = `{"path":"~/a.txt"}`
	l := withFiles(t)
	return []exchange{
		{name: "text", route: read, body: `{"path":"a","offset":1,"limit":1,"raw":false,"text":"lossy"}`, lab: l, status: 200},
		{name: "not UTF-8", route: read, body: `{"path":"a","follow":true,"permissions":[]}`, lab: l, status: 200},
		{name: "the rest of a line", route: read, body: `{"path":"a.txt","offset":2,"skipBytes":3}`, lab: l, status: 200},
		{name: "text that is none", route: read, body: `{"path":"a","text":"utf-8"}`, status: 400, breaks: true},
		{name: "skipBytes -1", route: read, body: `{"path":"a","skipBytes":-1}`, status: 400, breaks: true},
		{name: "a part of a text", route: read, body: `{"path":"a.txt","offset":1,"limit":2}`, lab: l, status: 200},
		{name: "whole text", route: read, body: path, lab: l, status: 200},
		{name: "image", route: read, body: `{"path":"pixel.png"}`, lab: l, status: 200},
		{name: "bytes", route: read, body: `{"pathBase64":"Y2Fm6Q==","binary":true}`, lab: l, status: 200},
		{name: "offset 0", route: read, body: `{"path":"a","offset":0}`, status: 400, breaks: true},
		{name: "limit -1", route: read, body: `{"path":"a","limit":-1}`, status: 400, breaks: true},

		{name: "text", route: write, body: `{"path":"~/new","content":"","append":true}`, lab: l, status: 200},
		{name: "bytes", route: write, body: `{"path":"~/bytes","content":"AP8=","encoding":"base64","exclusive":true}`, lab: l, status: 200},
		{name: "append and exclusive", route: write, body: `{"path":"~/a","content":"","append":true,"exclusive":true}`, lab: l, status: 400, breaks: true},
		{name: "unknown encoding", route: write, body: `{"path":"~/a","content":"","encoding":"hex"}`, status: 400, breaks: true},
		{name: "too large", route: write, body: `{"path":"~/a","content":"` + strings.Repeat("a", testMaxRequest) + `"}`, status: 413},
		{name: "there already", route: write, body: `{"path":"~/a","content":"","exclusive":true}`, lab: l, status: 409},
		{name: "disk full", route: write, body: `{"path":"/tmp/a","content":""}`, lab: fullTmp(t), status: 507},
	}
}

// fullTmp is a lab in which there is no room for a /tmp.
func fullTmp(t *testing.T) *lab {
	return newLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{TmpFunc: func() (string, error) { return "", classed(errs.ErrNoSpace) }}
	})
}

// withCredentials is a lab with the sandbox "keys", which holds two credentials, and one that is not
// registered.
func withCredentials(t *testing.T) *lab {
	files := images.NewOverrides(t.TempDir(), images.Original{})
	l := newLab(t, nil, func(o *sandboxtest.Options) {
		o.Platform = func(p *plan.PlatformConfig) {
			p.Overrides = func(context.Context, string) (*images.Overrides, error) { return files, nil }
		}
		o.Plan = func(cfg *plan.Config) {
			header := credential.Place{Header: "Authorization", Template: "Bearer {secret}"}
			plantest.AddCredentials(t, cfg,
				credential.Credential{Name: "github", Hosts: []string{"api.github.com"}, Place: header, Env: "GITHUB_TOKEN"},
				credential.Credential{Name: "npm", Hosts: []string{"registry.npmjs.org"}, Place: header})
		}
	})
	if _, _, err := l.Put("keys", sandbox.Registration{UserID: "alice", Network: true, Secrets: []string{"github", "npm", "gone"}}); err != nil {
		t.Fatal(err)
	}
	return l
}

// A call's credentials are explained with the hosts that they are for, or with why they are not put in.
func TestExplanationsHaveCredentials(t *testing.T) {
	l := withCredentials(t)
	for asks, want := range map[string]string{
		`"permissions":["@secret:npm","@network","@secret:github"],"allowedDomains":["api.github.com"]`: `"secrets":[{"name":"github","hosts":["api.github.com"],"env":"GITHUB_TOKEN"},{"name":"npm","hosts":["registry.npmjs.org"]}],"fingerprint"`,
		`"permissions":["@secret:github"]`: `"secrets":[{"name":"github","unused":"the call has no network"}],"fingerprint"`,
	} {
		if text := l.answered(exchange{route: "POST /v1/sandboxes/keys/explain", body: "{" + asks + "}"}); !strings.Contains(text, want) {
			t.Errorf("%s: %s", asks, text)
		}
	}
}

// otherExchanges are those of every call on files and of explain that has nothing of its own, and the
// faults that all share.
func otherExchanges(t *testing.T) []exchange {
	const box = "/v1/sandboxes/agent-7"
	l := withFiles(t)
	// Docker is away, which matters for what is in /tmp and for explain.
	away := func(fault error) *lab { return newLab(t, nil, engineDown(fault)) }
	stopping, broken := away(classed(cerrdefs.ErrUnavailable)), away(context.DeadlineExceeded)
	exchanges := []exchange{
		{name: "nothing", route: "POST " + box + "/explain", body: `{}`, lab: l, status: 200},
		{name: "credentials", route: "POST /v1/sandboxes/keys/explain", lab: withCredentials(t), status: 200,
			body: `{"permissions":["@secret:github","@network","@secret:npm"],"allowedDomains":["api.github.com"]}`},
		{name: "credentials of no use", route: "POST /v1/sandboxes/keys/explain", body: `{"permissions":["@secret:github"]}`, lab: withCredentials(t), status: 200},
		{name: "a credential that is not registered", route: "POST /v1/sandboxes/keys/explain", body: `{"permissions":["@secret:gone"]}`, lab: withCredentials(t), status: 409},
		{name: "a credential that is not held", route: "POST /v1/sandboxes/keys/explain", body: `{"permissions":["@secret:other"]}`, lab: withCredentials(t), status: 403},
		{name: "no name of a credential", route: "POST " + box + "/explain", body: `{"permissions":["@secret:*"]}`, lab: l, status: 400, breaks: true},
		{name: "a mount point", route: "POST " + box + "/list", body: `{"path":"~"}`, lab: withMount(t), status: 200},
	}
	// The bodies are %s of a path, in this order: one that is there, denied, not there, and in /tmp.
	for _, x := range []struct{ call, good, denied, missing, tmp string }{
		{"list", `{"path":"~"}`, `{"path":"~/.ssh"}`, `{"path":"~/none"}`, `{"path":"/tmp/x"}`},
		{"stat", `{"pathBase64":"Y2Fm6Q=="}`, `{"path":"~/.ssh/key"}`, `{"path":"~/none"}`, `{"path":"/tmp/x"}`},
		{"mkdir", `{"path":"~/new/dir","parents":true}`, `{"path":"/etc/x"}`, `{"path":"~/none/x"}`, `{"path":"/tmp/x"}`},
		{"move", `{"from":"~/a","toBase64":"fi9i/w==","overwrite":true}`, `{"from":"~/a.txt","to":"/etc/x"}`, `{"from":"~/none","to":"~/x"}`, `{"from":"/tmp/x","to":"/tmp/y"}`},
		{"remove", `{"path":"~/dir","recursive":true}`, `{"path":"/etc/x"}`, `{"path":"~/none"}`, `{"path":"/tmp/x"}`},
		{"explain", `{"permissions":["@read:/home/x"],"home":"/tmp"}`, `{"permissions":["@events"]}`, ``, `{}`},
	} {
		route := "POST " + box + "/" + x.call
		missing := exchange{name: "not there", route: route, body: x.missing, lab: l, status: 404}
		if x.missing == "" {
			missing.route, missing.body = "POST /v1/sandboxes/none/"+x.call, "{}"
		}
		exchanges = append(exchanges,
			exchange{name: "good", route: route, body: x.good, lab: l, status: 200},
			exchange{name: "unknown key", route: route, body: `{"path":"a","depth":1}`, status: 400, breaks: true},
			exchange{name: "refused", route: route, body: x.denied, lab: l, status: 403},
			missing,
			exchange{name: "stopping", route: route, body: x.tmp, lab: stopping, status: 503},
			exchange{name: "broken", route: route, body: x.tmp, lab: broken, status: 502},
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
	const files = "/v1/sandboxes/agent-7/files"
	const put, get, head = "PUT " + files, "GET " + files, "HEAD " + files
	l := withFiles(t)
	exchanges := []exchange{
		{name: "all", route: put + "?path=~%2Fnew&exclusive=true", kind: octets, body: "a", lab: l, status: 200},
		{name: "empty", route: put + "?path=~%2Fempty", lab: l, status: 200},
		{name: "JSON", route: put + "?path=a", body: "{}", status: 400, breaks: true},
		{name: "exclusive is a word", route: put + "?path=a&exclusive=yes", kind: octets, body: "a", status: 400, breaks: true},
		{name: "there already", route: put + "?path=~%2Fa&exclusive=true", kind: octets, body: "a", lab: l, status: 409},
		{name: "disk full", route: put + "?path=%2Ftmp%2Fa", kind: octets, body: "a", lab: fullTmp(t), status: 507},
		{name: "no path", route: put, kind: octets, body: "a", status: 400, breaks: true},
	}
	const dir = "/v1/sandboxes/agent-7/archive"
	exchanges = append(exchanges,
		exchange{name: "nothing", route: "PUT " + dir + "?path=~%2Fmade", kind: tarType, lab: l, status: 200},
		exchange{name: "no archive", route: "PUT " + dir + "?path=~%2Fmade", kind: tarType, body: strings.Repeat("a", 512), lab: l, status: 400},
		exchange{name: "JSON", route: "PUT " + dir + "?path=a", body: "{}", status: 400, breaks: true},
		exchange{name: "a file", route: "PUT " + dir + "?path=a", kind: tarType, lab: l, status: 409},
		exchange{name: "refused", route: "PUT " + dir + "?path=.ssh", kind: tarType, lab: l, status: 403},
		exchange{name: "disk full", route: "PUT " + dir + "?path=%2Ftmp%2Fa", kind: tarType, lab: fullTmp(t), status: 507},
		exchange{name: "no path", route: "PUT " + dir, kind: tarType, body: "a", status: 400, breaks: true},
		exchange{name: "all", route: "GET " + dir + "?path=dir&follow=true", lab: l, status: 200},
		exchange{name: "a file", route: "GET " + dir + "?path=a", lab: l, status: 400},
		exchange{name: "not there", route: "GET " + dir + "?path=none", lab: l, status: 404},
		exchange{name: "refused", route: "GET " + dir + "?path=.ssh", lab: l, status: 403},
		exchange{name: "no path", route: "GET " + dir, status: 400, breaks: true},
		exchange{name: "follow is a word", route: "GET " + dir + "?path=a&follow=yes", status: 400, breaks: true},
	)
	for _, route := range []string{get, head} {
		exchanges = append(exchanges,
			exchange{name: "all", route: route + "?path=a", lab: l, status: 200},
			exchange{name: "no path", route: route, status: 400, breaks: true},
			exchange{name: "refused", route: route + "?path=.ssh%2Fkey", lab: l, status: 403},
		)
	}
	return exchanges
}
