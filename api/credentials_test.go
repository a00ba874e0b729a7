package api

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
)

// credentialExchanges are made in this order.
func credentialExchanges(t *testing.T) []exchange {
	const put, get, remove = "PUT /v1/credentials/github", "GET /v1/credentials/github", "DELETE /v1/credentials/github"
	const list = "GET /v1/credentials"
	const bearer = `"hosts":["api.github.com"],"header":"Authorization","template":"Bearer {secret}"`
	const all = `{` + bearer + `,"methods":["GET","POST"],"paths":["/repos/a"],"users":["alice"],"env":"GITHUB_TOKEN","value":"secret"}`
	l, unwritable, keyless := newLab(t, nil), newLab(t, nil), newLab(t, nil)
	records := filepath.Join(unwritable.Dir, "credentials")
	keyless.answered(exchange{route: put, body: all})
	if err := errors.Join(os.RemoveAll(records), os.WriteFile(records, nil, 0o600), os.Remove(filepath.Join(keyless.Dir, "credentials.key"))); err != nil {
		t.Fatal(err)
	}
	large := `{` + bearer + `,"value":"` + strings.Repeat("a", testMaxRequest) + `"}`
	return []exchange{
		{name: "none", route: list, lab: l, status: 200},
		{name: "not there", route: get, lab: l, status: 404},
		{name: "without a value, and there is none", route: put, lab: l, body: `{` + bearer + `}`, status: 400},
		{name: "new", route: put, lab: l, body: all, status: 201},
		{name: "there", route: get, lab: l, status: 200},
		{name: "all of it", route: put, lab: l, body: `{` + bearer + `}`, status: 200},
		{name: "an empty value", route: put, lab: l, body: `{` + bearer + `,"value":""}`, status: 400, breaks: true},
		{name: "further hosts without a value", route: put, lab: l, body: strings.Replace(`{`+bearer+`}`, "api", "*", 1), status: 400},
		{name: "another value", route: put, lab: l, body: `{"hosts":["a.example.org","b.example.org"],"query":"key","value":"other"}`, status: 200},
		{name: "one", route: list, lab: l, status: 200},

		{name: "no hosts", route: put, lab: l, body: `{"basic":"x","value":"secret"}`, status: 400, breaks: true},
		{name: "empty hosts", route: put, lab: l, body: `{"hosts":[],"basic":"x","value":"secret"}`, status: 400, breaks: true},
		{name: "all commercial names", route: put, lab: l, body: `{"hosts":["*.com"],"basic":"x","value":"secret"}`, status: 400},
		{name: "an address", route: put, lab: l, body: `{"hosts":["10.0.0.1"],"basic":"x","value":"secret"}`, status: 400},
		{name: "no place", route: put, lab: l, body: `{"hosts":["example.org"],"value":"secret"}`, status: 400, breaks: true},
		{name: "two places", route: put, lab: l, body: `{"hosts":["example.org"],"basic":"x","query":"key","value":"secret"}`, status: 400, breaks: true},
		{name: "a header without a template", route: put, lab: l, body: `{"hosts":["example.org"],"header":"X-Api-Key","value":"secret"}`, status: 400, breaks: true},
		{name: "a template without the value", route: put, lab: l, body: `{"hosts":["example.org"],"header":"X-Api-Key","template":"key","value":"secret"}`, status: 400},
		{name: "a header of the connection", route: put, lab: l, body: `{"hosts":["example.org"],"header":"Connection","template":"{secret}","value":"secret"}`, status: 400},
		{name: "no methods", route: put, lab: l, body: `{` + bearer + `,"methods":[]}`, status: 400, breaks: true},
		{name: "no paths", route: put, lab: l, body: `{` + bearer + `,"paths":[]}`, status: 400, breaks: true},
		{name: "no users", route: put, lab: l, body: `{` + bearer + `,"users":[]}`, status: 400, breaks: true},
		{name: "no user's name", route: put, lab: l, body: `{` + bearer + `,"users":["Alice"]}`, status: 400, breaks: true},
		{name: "a variable that is no name", route: put, lab: l, body: `{` + bearer + `,"env":"A=B"}`, status: 400, breaks: true},
		{name: "a variable of the shell's", route: put, lab: l, body: `{` + bearer + `,"env":"PATH"}`, status: 400},
		{name: "a method in lower case", route: put, lab: l, body: `{` + bearer + `,"methods":["get"]}`, status: 400},
		{name: "a path with a query", route: put, lab: l, body: `{` + bearer + `,"paths":["/a?b"]}`, status: 400},
		{name: "a value of two lines", route: put, lab: l, body: `{` + bearer + `,"value":"a\nb"}`, status: 400, breaks: true},
		{name: "a long value", route: put, lab: l, body: `{` + bearer + `,"value":"` + strings.Repeat("a", 16385) + `"}`, status: 400, breaks: true},
		{name: "unknown key", route: put, lab: l, body: `{` + bearer + `,"secret":"x"}`, status: 400, breaks: true},
		{name: "bad name", route: "PUT /v1/credentials/Git..Hub", lab: l, body: all, status: 400, breaks: true},
		{name: "too large", route: put, lab: l, body: large, status: 413, breaks: true},
		{name: "disk full", route: put, lab: unwritable, body: all, status: 502},
		{name: "without the key of its value", route: put, lab: keyless, body: `{` + bearer + `}`, status: 409},

		{name: "there", route: remove, lab: l, status: 204},
		{name: "not there", route: remove, lab: l, status: 404},
		{name: "none again", route: list, lab: l, status: 200},
	}
}

// All terms are replaced, and the value stays if it is left out.
func TestCredentialIsReplacedButForItsValue(t *testing.T) {
	l := newLab(t, nil)
	put := func(body string) (c types.Credential, value string) {
		if err := json.Unmarshal([]byte(l.answered(exchange{route: "PUT /v1/credentials/github", body: body})), &c); err != nil {
			t.Fatal(err)
		}
		value, err := l.ValueOf("github")
		if err != nil {
			t.Fatal(err)
		}
		return c, value
	}
	first, value := put(`{"hosts":["api.github.com"],"header":"authorization","template":"Bearer {secret}","methods":["GET"],"paths":["/repos"],"users":["alice"],"env":"GITHUB_TOKEN","value":"first"}`)
	want := types.CredentialTerms{
		Hosts: []string{"api.github.com"}, CredentialPlace: types.CredentialPlace{Header: "Authorization", Template: "Bearer {secret}"},
		Methods: []string{"GET"}, Paths: []string{"/repos"}, Users: []string{"alice"}, Env: "GITHUB_TOKEN",
	}
	if diff := cmp.Diff(want, first.CredentialTerms); diff != "" || first.Name != "github" || !strings.HasPrefix(first.Placeholder, "daycare-secret-") || value != "first" {
		t.Errorf("%q, %+v; want (-), got (+):\n%s", value, first, diff)
	}
	second, value := put(`{"hosts":["api.github.com"],"header":"Authorization","template":"Bearer {secret}"}`)
	want = types.CredentialTerms{Hosts: want.Hosts, CredentialPlace: want.CredentialPlace}
	if diff := cmp.Diff(want, second.CredentialTerms); diff != "" || value != "first" {
		t.Errorf("%q; want (-), got (+):\n%s", value, diff)
	}
	third, value := put(`{"hosts":["*.example.org"],"query":"key","value":"second"}`)
	if third.Query != "key" || third.Header != "" || value != "second" {
		t.Errorf("%q, %+v", value, third)
	}
	for _, later := range []types.Credential{second, third} {
		if later.Placeholder != first.Placeholder || !later.CreatedAt.Equal(first.CreatedAt) || !later.UpdatedAt.After(first.UpdatedAt) {
			t.Errorf("%+v became %+v", first, later)
		}
	}
}

// A value that was sent, rightly or not, is in no answer, in no line of the log at any level, and on disk only sealed.
func TestValuesOfCredentialsAreNowhere(t *testing.T) {
	var log lines
	l := newLab(t, nil)
	server := l.serveConfig(logTo(&log, zerolog.TraceLevel))
	const terms = `"hosts":["api.example.org"],"basic":"x"`
	for _, x := range []exchange{
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"TOPSECRET"}`, status: 201},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"TOPSECRET-2"}`, status: 200},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"TOPSECRET\n"}`, status: 400},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"` + strings.Repeat("TOPSECRET", 4000) + `"}`, status: 400},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":["TOPSECRET"]}`, status: 400},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"TOPSECRET"`, status: 400},
		{route: "PUT /v1/credentials/github", body: `{` + terms + `,"value":"TOPSECRET","value":"TOPSECRET"}`, status: 400},
		{route: "PUT /v1/credentials/github", body: `{"hosts":["*"],"value":"TOPSECRET"}`, status: 400},
		{route: "GET /v1/credentials/github", status: 200},
		{route: "GET /v1/credentials", status: 200},
		{route: "DELETE /v1/credentials/github", status: 204},
	} {
		req := x.request(t, server.URL)
		req.Header.Set("X-Request-Id", "r-1")
		response, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != x.status || strings.Contains(string(body), "TOPSECRET") {
			t.Errorf("%s %.80s: %d %s", x.route, x.body, response.StatusCode, body)
		}
		if x.status == http.StatusCreated {
			onDisk(t, l.Dir, "TOPSECRET")
		}
	}
	server.Close() // when all is logged
	if strings.Contains(log.String(), "TOPSECRET") {
		t.Errorf("a value is in the log:\n%s", log.String())
	}
	for _, what := range []string{"registered", "changed", "removed"} {
		line := `{"level":"info","requestId":"r-1","credential":"github","caller":"test","message":"credential ` + what + `"}` + "\n"
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("there is no %s in\n%s", line, log.String())
		}
	}
}

// Who acts for some users alone neither sees a credential nor changes one.
func TestCredentialsAreForOperators(t *testing.T) {
	w, asked := openWays(t), 0
	w.ready("alices")
	before, err := w.Credentials.Get("github")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if !strings.Contains(r.pattern, "/credentials") {
			continue
		}
		asked++
		if status, text := w.ask(t, readContract(t), r, callerClass{"", w.tcp, aliceToken}, "alices"); status != http.StatusForbidden || strings.Contains(text, before.Hosts[0]) {
			t.Errorf("%s: %d %s", r.pattern, status, text)
		}
	}
	if after, err := w.Credentials.Get("github"); err != nil || !after.UpdatedAt.Equal(before.UpdatedAt) || asked != 4 {
		t.Errorf("after %d requests: %+v, %v", asked, after, err)
	}
}

// onDisk fails the test if a text is in a file below dir, or if there is no file.
func onDisk(t *testing.T, dir, text string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		content, err := os.ReadFile(name)
		if strings.Contains(string(content), text) {
			t.Errorf("%s is in %s", text, name)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}
