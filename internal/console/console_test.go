package console

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

const secret = "engine-0123456789abcdef0123456789abcdef"

var sealKey = []byte("0123456789abcdef0123456789abcdef")

// desk is a console before an API that tells what it was asked.
type desk struct {
	*Console
	t       *testing.T
	reached *http.Request
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t}
	var err error
	d.Console, err = New(Config{
		SealKey: sealKey,
		API:     http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { d.reached = req }),
		SignIn:  func(given string) (string, bool) { return "Bearer " + given, given == secret },
		Admit: func(req *http.Request) error {
			if req.Host != "console.example" || req.Header.Get("Origin") != "" {
				return errors.New("not here")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) ask(method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Host = "console.example"
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	d.reached = nil
	w := httptest.NewRecorder()
	d.ServeHTTP(w, req)
	return w
}

func (d *desk) signIn() (cookie *http.Cookie, key string) {
	d.t.Helper()
	w := d.ask("POST", "/console/session", `{"secret":"`+secret+`"}`, "Content-Type", "application/json", "Origin", "http://console.example")
	var body struct{ Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 200 || len(w.Result().Cookies()) != 1 {
		d.t.Fatal(w.Code, w.Body, err)
	}
	return w.Result().Cookies()[0], body.Key
}

func TestSessions(t *testing.T) {
	d := newDesk(t)
	cookie, key := d.signIn()
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.MaxAge != 12*60*60 {
		t.Errorf("%+v", cookie)
	}
	both := []string{"Cookie", cookie.Name + "=" + cookie.Value, keyHeader, key}
	for name, tt := range map[string]struct {
		header []string
		want   string // the authorization that arrives; - for a refusal
	}{
		"both":                     {both, "Bearer " + secret},
		"from our page":            {append(both, "Origin", "http://console.example"), "Bearer " + secret},
		"with a token of its own":  {append(both, "Authorization", "Bearer x"), "Bearer " + secret},
		"from another page":        {append(both, "Origin", "http://console.example:81"), "-"},
		"from no page":             {append(both, "Origin", "null"), "-"},
		"the cookie alone":         {both[:2], ""},
		"the key alone":            {both[2:], "-"},
		"the key of another":       {append(both[:2:2], keyHeader, "x"+key), "-"},
		"an empty key":             {append(both[:2:2], keyHeader, " "), "-"},
		"a token, without session": {[]string{"Authorization", "Bearer x"}, "Bearer x"},
	} {
		w := d.ask("GET", "/v1/sandboxes", "", tt.header...)
		if tt.want == "-" {
			if d.reached != nil || w.Code != http.StatusUnauthorized {
				t.Errorf("%s: %d", name, w.Code)
			}
			continue
		}
		if d.reached == nil || d.reached.Header.Get("Authorization") != tt.want {
			t.Errorf("%s: %+v", name, d.reached)
		}
		if tt.want == "Bearer "+secret && (d.reached.Header.Get("Cookie") != "" || d.reached.Header.Get("Origin") != "") {
			t.Errorf("%s: %v", name, d.reached.Header)
		}
	}
	d.now = func() time.Time { return time.Now().Add(sessionTime) }
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached != nil {
		t.Error("it never ends")
	}
	d.now = time.Now
	cookie, key = d.signIn()
	both = []string{"Cookie", cookie.Name + "=" + cookie.Value, keyHeader, key}
	d.ask("DELETE", "/console/session", "", both[:2]...)
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached == nil {
		t.Error("whoever has the cookie alone ends the session")
	}
	d.ask("DELETE", "/console/session", "", both...)
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached != nil {
		t.Error("signing out ends nothing")
	}
}

// An answer to a session ends with the session: when it signs out, and when its time is over.
func TestStreamsEndWithTheirSession(t *testing.T) {
	for name, end := range map[string]func(d *desk, both []string){
		"signed out": func(d *desk, both []string) { d.ask("DELETE", "/console/session", "", both...) },
		"signed out, of many": func(d *desk, both []string) {
			for i := range maxEnded {
				d.ended[sha256.Sum256([]byte{byte(i), byte(i >> 8)})] = time.Now()
			}
			d.ask("DELETE", "/console/session", "", both...)
		},
		"over": func(*desk, []string) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t)
			ended := make(chan string, 2)
			stream := func(who string) (both []string) {
				cookie, key := d.signIn()
				begun := make(chan struct{})
				d.cfg.API = http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
					close(begun)
					<-req.Context().Done()
					ended <- who
				})
				req := httptest.NewRequest("GET", "/v1/events", nil)
				req.AddCookie(cookie)
				req.Header.Set(keyHeader, key)
				go d.ServeHTTP(httptest.NewRecorder(), req)
				<-begun
				return []string{"Cookie", cookie.Name + "=" + cookie.Value, keyHeader, key}
			}
			end(d, stream("first"))
			synctest.Wait()
			waittest.Pass(time.Hour)
			stream("second")
			waittest.Pass(sessionTime - time.Hour)
			if len(ended) != 1 || <-ended != "first" {
				t.Errorf("%s: the first goes on, or the second does not", name)
			}
			waittest.Pass(time.Hour)
			if len(ended) != 1 || len(d.open) != 0 {
				t.Errorf("%s: the second goes on, and %d are open", name, len(d.open))
			}
		})
	}
}

// A cookie that somebody else has put into the browser stays theirs, and it opens nothing with another session's key.
func TestSessionsAreNotFixed(t *testing.T) {
	d := newDesk(t)
	planted, theirs := d.signIn()
	w := d.ask("POST", "/console/session", `{"secret":"`+secret+`"}`, "Content-Type", "application/json", "Cookie", planted.Name+"="+planted.Value, keyHeader, theirs)
	var body struct{ Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || len(w.Result().Cookies()) != 1 {
		t.Fatal(w.Code, err)
	}
	own := w.Result().Cookies()[0]
	if own.Value == planted.Value || body.Key == theirs {
		t.Error("who signs in is given the session that was there")
	}
	mixed := own.Value[:len(own.Value)/2] + planted.Value[len(planted.Value)/2:]
	for name, pair := range map[string][2]string{"the planted cookie": {planted.Value, body.Key}, "the planted key": {own.Value, theirs}, "a mixture": {mixed, body.Key}, "none": {"", body.Key}} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			if w := d.ask(method, "/v1/sandboxes/a", "{}", "Cookie", own.Name+"="+pair[0], keyHeader, pair[1]); d.reached != nil || w.Code != http.StatusUnauthorized {
				t.Errorf("%s with %s: %d", method, name, w.Code)
			}
		}
	}
	for _, over := range []bool{false, true} {
		req := httptest.NewRequest("POST", "/console/session", strings.NewReader(`{"secret":"`+secret+`"}`))
		req.Host = "console.example"
		req.Header.Set("Content-Type", "application/json")
		if over {
			req.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, req)
		if c := w.Result().Cookies()[0]; c.Secure != over || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" {
			t.Errorf("over TLS %t: %+v", over, c)
		}
	}
}

// However many sessions have signed out, a session that signs out has ended.
func TestManySignOuts(t *testing.T) {
	d := newDesk(t)
	var both []string
	for range maxEnded + 1 {
		cookie, key := d.signIn()
		both = []string{"Cookie", cookie.Name + "=" + cookie.Value, keyHeader, key}
		d.ask("DELETE", "/console/session", "", both...)
	}
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached != nil {
		t.Error("signing out ends nothing")
	}
	cookie, key := d.signIn()
	if d.ask("GET", "/v1/sandboxes", "", "Cookie", cookie.Name+"="+cookie.Value, keyHeader, key); d.reached == nil {
		t.Error("nobody can sign in again")
	}
}

func TestSignInIsRefused(t *testing.T) {
	d := newDesk(t)
	good, kind := `{"secret":"`+secret+`"}`, []string{"Content-Type", "application/json"}
	for name, tt := range map[string]struct {
		body   string
		header []string
		status int
	}{
		"wrong":             {`{"secret":"x"}`, kind, 401},
		"no secret":         {`{}`, kind, 401},
		"no JSON":           {`secret`, kind, 400},
		"much":              {`{"secret":"` + strings.Repeat("x", maxSecret) + `"}`, kind, 400},
		"a form's type":     {good, []string{"Content-Type", "text/plain"}, 415},
		"from another page": {good, append(kind, "Origin", "http://evil.example"), 403},
	} {
		if w := d.ask("POST", "/console/session", tt.body, tt.header...); w.Code != tt.status || len(w.Result().Cookies()) != 0 {
			t.Errorf("%s: %d %v", name, w.Code, w.Result().Cookies())
		}
	}
}

// A session survives the service that began it, but not a change of the key that sealed it.
func TestSessionsOutliveARestart(t *testing.T) {
	cookie, key := newDesk(t).signIn()
	both := []string{"Cookie", cookie.Name + "=" + cookie.Value, keyHeader, key}
	d := newDesk(t)
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached == nil || d.reached.Header.Get("Authorization") != "Bearer "+secret {
		t.Errorf("%+v", d.reached)
	}
	if strings.Contains(cookie.Value, secret) || len(cookie.Value) > 4000 {
		t.Errorf("the cookie is %s", cookie.Value)
	}
	other, err := New(Config{SealKey: []byte("another-key-of-as-many-bytes-000"), API: d.cfg.API, SignIn: d.cfg.SignIn, Admit: d.cfg.Admit})
	if err != nil {
		t.Fatal(err)
	}
	d.Console = other
	if d.ask("GET", "/v1/sandboxes", "", both...); d.reached != nil {
		t.Error("another key opens it")
	}
	if _, err := New(Config{SealKey: []byte("short")}); err == nil {
		t.Error("a short key seals")
	}
}

// The embedded files are ours: none loads or names anything elsewhere, runs text, or turns text into markup.
func TestAssets(t *testing.T) {
	d := newDesk(t)
	err := fs.WalkDir(assets, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		w := d.ask("GET", "/console/"+strings.TrimPrefix(name, "assets/"), "")
		text := strings.ReplaceAll(w.Body.String(), "http://www.w3.org/2000/svg", "")
		for _, never := range []string{"http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", " style=", " onclick=", "transition", "animation", "@keyframes"} {
			if strings.Contains(text, never) {
				t.Errorf("%s has %q", name, never)
			}
		}
		if lines := strings.Count(text, "\n"); w.Code != 200 || lines > 350 || w.Header().Get("Content-Type") == "" ||
			!strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';") {
			t.Errorf("%s: %d, %d lines, %v", name, w.Code, lines, w.Header())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, status := range map[string]int{"/console": 308, "/console/": 200, "/console/../console.go": 404, "/console/none": 404} {
		if w := d.ask("GET", path, ""); w.Code != status {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// Whoever opens the address alone comes to the console; what else is sent there is the API's.
func TestTheBeginningLeadsToTheConsole(t *testing.T) {
	d := newDesk(t)
	if w := d.ask("GET", "/", ""); w.Code != http.StatusTemporaryRedirect || w.Header().Get("Location") != "/console/" || d.reached != nil {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
	if d.ask("POST", "/", ""); d.reached == nil {
		t.Error("a call of the API does not reach it")
	}
}
