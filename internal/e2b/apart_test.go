package e2b

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/e2b/processpb"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// routesInside are all routes of calls into a sandbox, as "GET /files".
func routesInside() []string {
	s := &server{}
	list := []string{"GET /health"}
	for procedure := range s.procedures() {
		list = append(list, "POST "+procedure)
	}
	list = slices.AppendSeq(list, maps.Keys(plainRoutes()))
	return slices.Sorted(slices.Values(slices.AppendSeq(list, maps.Keys(signedRoutes()))))
}

// request is a route as a request: each method that it has no other of, and each placeholder filled.
func request(route, id string) (method, path string) {
	method, path, named := strings.Cut(route, " ")
	if !named {
		method, path = "GET", route
	}
	path = strings.ReplaceAll(path, "{id}", id)
	if strings.HasSuffix(path, ".Filesystem/") || strings.HasSuffix(path, ".Process/") {
		path += "Unknown"
	}
	return method, path
}

// TestNobodyReachesAnothersSandbox calls every route that there is with what another has of a sandbox: it must be as if
// there were none. A route that is added is called without a word here; one that names no sandbox has to be named.
func TestNobodyReachesAnothersSandbox(t *testing.T) {
	l := newLab(t)
	b, other := l.create(`{}`), l.create(`{}`)
	const none = "i9999999999999999999"
	unknowing := []string{ // what these answer is the same for every caller and sandbox
		"/templates", "/templates/", "/v2/templates", "/v2/templates/", "/v3/templates", "GET /templates", "GET /v2/templates",
		"GET /templates/aliases/{alias}", "GET /templates/{template}/{part}", "GET /snapshots", "/secrets", "/secrets/", "/volumes", "/volumes/", "/volumecontent/",
		"POST /sandboxes", "POST /v2/sandboxes", // makes the caller's own
		"GET /sandboxes", "GET /v2/sandboxes", // has the caller's own
	}
	for route := range controlRoutes() {
		if slices.Contains(unknowing, route) {
			continue
		}
		if !strings.Contains(route, "{id}") {
			t.Errorf("%s names no sandbox, and is none of those of which that is known", route)
		}
		method, path := request(route, b.ID)
		status, text, _ := l.call(bensKey, method, path, `{"timeout":1}`)
		_, nowhere := request(route, none)
		status2, text2, _ := l.call(bensKey, method, nowhere, `{"timeout":1}`)
		if status != http.StatusNotFound || status2 != status || text2 != strings.ReplaceAll(text, b.ID, none) {
			t.Errorf("%s: %d %s, and of none %d %s", route, status, text, status2, text2)
		}
		if status, text, _ := l.call("", method, path, `{"timeout":1}`); status != http.StatusUnauthorized {
			t.Errorf("%s without a key: %d %s", route, status, text)
		}
	}
	for _, list := range []string{"/sandboxes", "/v2/sandboxes", "/v2/sandboxes?state=running,paused", "/v2/sandboxes?metadata="} {
		if _, text, _ := l.call(bensKey, "GET", list, ""); text != "[]" {
			t.Errorf("%s shows ben %s", list, text)
		}
	}
	for _, route := range routesInside() {
		for _, token := range []string{other.Token, "", "x", annesKey, bensKey} {
			header := http.Header{"E2b-Sandbox-Id": {b.ID}, "X-Access-Token": {token}, "X-Api-Key": {bensKey}, "Content-Type": {"application/json"}}
			method, path := request(route, "")
			status, text, _ := l.send(method, path+"?path=x", `{"path":"x"}`, header)
			header.Set("E2b-Sandbox-Id", none)
			status2, text2, _ := l.send(method, path+"?path=x", `{"path":"x"}`, header)
			if status != http.StatusNotFound || status2 != status || text2 != strings.ReplaceAll(text, b.ID, none) {
				t.Errorf("%s with %.8q: %d %s, and of none %d %s", route, token, status, text, status2, text2)
			}
		}
	}
	if status, text, _ := l.call(annesKey, "GET", "/sandboxes/"+b.ID, ""); status != http.StatusOK {
		t.Errorf("and it is there no more: %d %s", status, text)
	}
	bens := l.facade.Scoped(ids.OnlyUsers(), quota.Token{Name: "ben", Some: true})
	if _, err := bens.Get(b.ID); err == nil || len(bens.List()) > 0 {
		t.Errorf("a token for some users finds it at the service's own API: %v", err)
	}
}

// TestASignatureOpensItsFileAlone signs a URL as clients do, and takes it everywhere else.
func TestASignatureOpensItsFileAlone(t *testing.T) {
	l := newLab(t)
	b := l.create(`{}`)
	put(b, "s", "signed")
	put(b, "other", "another")
	expires := fmt.Sprint(time.Now().Unix() + 60)
	signed := func(path, operation, user string) url.Values {
		return url.Values{"path": {path}, "signature": {signature(path+":"+operation+":"+user+":"+b.Token, expires)}, "signature_expiration": {expires}, "username": {user}}
	}
	ours := signed("s", "read", "user")
	if status, text, _ := b.send("GET", "/files?"+ours.Encode(), "", nil); status != http.StatusOK || text != "signed" {
		t.Fatalf("%d %s", status, text)
	}
	headers := []http.Header{{"Content-Type": {"application/json"}}, {"Content-Type": {"application/json"}, "E2b-Sandbox-Id": {b.ID}}}
	for _, operation := range []string{"read", "write"} {
		for _, route := range routesInside() {
			if _, is := signedRoutes()[route]; is {
				continue
			}
			for _, header := range headers {
				method, path := request(route, "")
				status, text, _ := b.send(method, path+"?"+signed("s", operation, "user").Encode(), `{"path":"s"}`, header)
				if status != http.StatusNotFound {
					t.Errorf("a signature to %s opens %s: %d %s", operation, route, status, text)
				}
			}
		}
	}
	with := func(change ...string) string {
		query := maps.Clone(ours)
		for i := 0; i < len(change); i += 2 {
			query[change[i]] = []string{change[i+1]}
		}
		return query.Encode()
	}
	for name, query := range map[string]string{
		"another path": with("path", "other"), "no path": with("path", ""), "another user": with("username", ""), "another expiry": with("signature_expiration", expires+"0"),
		"no expiry": with("signature_expiration", ""), "a path before": "path=other&" + ours.Encode(),
		// The same text is signed, parted elsewhere.
		"parted by a user": with("path", "s:read:user", "username", ""), "a longer user": url.Values{"path": {"s"}, "username": {"a:read:b"}, "signature": signed("s:read:a", "read", "b")["signature"], "signature_expiration": {expires}}.Encode(),
	} {
		if status, text, _ := b.send("GET", "/files?"+query, "", nil); status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, text, _ := b.send("POST", "/files?"+ours.Encode(), "x", http.Header{"Content-Type": {"application/octet-stream"}}); status != http.StatusUnauthorized {
		t.Errorf("a signature to read writes: %d %s", status, text)
	}
	// A user in a header was not signed.
	header := http.Header{}
	header.Set("Authorization", "Basic cm9vdDo=") // root:
	if status, text, _ := b.send("GET", "/files?"+signed("s", "read", "").Encode(), "", header); status != http.StatusOK {
		t.Errorf("the user of a header counts beside a signature: %d %s", status, text)
	}
}

// TestATokenThatIsGone takes away the token that has made a sandbox, and then gives its name to another one: what was
// derived from it opens nothing any more, and what goes on ends.
func TestATokenThatIsGone(t *testing.T) {
	l := newLab(t)
	b := l.create(`{}`)
	put(b, "s", "signed")
	stream, err := followRPC[processpb.StartRequest, processpb.StartResponse](t.Context(), b, "/process.Process/Start",
		&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "sleep", Args: []string{"1000"}}})
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	signed := url.Values{"path": {"s"}, "signature": {signature("s:read::"+b.Token, "")}}.Encode()
	opens := func() (list []int) {
		for _, c := range []struct {
			path   string
			header http.Header
		}{{"/files?path=s", b.header()}, {"/files?" + signed, nil}, {"/health", b.header()}, {"/envs", b.header()}} {
			status, _, _ := l.send("GET", c.path, "", c.header)
			list = append(list, status)
		}
		return list
	}
	if got := opens(); !slices.Equal(got, []int{200, 200, 204, 200}) {
		t.Fatal(got)
	}
	l.tokens.Use(readTokens(t, bensToken))
	if got := opens(); !slices.Equal(got, []int{404, 401, 404, 404}) {
		t.Errorf("the token is gone: %v", got)
	}
	for stream.Receive() {
	}
	if stream.Err() == nil {
		t.Error("a stream goes on to its end without its token")
	}
	const next = "another-0123456789abcdef0123456789abcdef"
	l.tokens.Use(readTokens(t, bensToken+`,{"name":"anne","token":"`+next+`"}`))
	if got := opens(); !slices.Equal(got, []int{404, 401, 404, 404}) {
		t.Errorf("another token has its name: %v", got)
	}
	if status, text, _ := l.call(next, "POST", "/sandboxes/"+b.ID+"/connect", `{}`); status != http.StatusOK || strings.Contains(text, b.Token) {
		t.Errorf("%d %s", status, text)
	}
	l.tokens.Use(readTokens(t, bensToken+","+annesToken))
	if got := opens(); !slices.Equal(got, []int{200, 200, 204, 200}) {
		t.Errorf("the token is back: %v", got)
	}
}
