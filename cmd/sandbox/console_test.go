package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// A browser leaves out the port that http has by default, and only that.
func TestConsolesHost(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1", "127.0.0.1:8080": "127.0.0.1:8080", "127.0.0.1:180": "127.0.0.1:180", "[::1]:80": "[::1]", "[::1]:443": "[::1]:443",
	} {
		at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		link, err := url.Parse("http://" + hostOf(at) + "/console/")
		if err != nil || link.Host != want {
			t.Errorf("%s: %v, %v", address, link, err)
		}
	}
}

// The link signs in once, and without a session nobody calls: the port is open to every user of the host.
func TestConsoleLinkIsForOne(t *testing.T) {
	const at = "127.0.0.1:1"
	called := 0
	handler, err := oneTime(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called++ }), at, "once")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, host, body string, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.Host = host
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		return w
	}
	signIn := func(secret, host string) *httptest.ResponseRecorder {
		return ask("POST", "/console/session", host, `{"secret":"`+secret+`"}`, "Content-Type", "application/json")
	}
	for _, refused := range []*httptest.ResponseRecorder{signIn("twice", at), signIn("", at), signIn("once", "evil.example:1"), ask("GET", "/v1/sandboxes", at, "")} {
		if refused.Code != http.StatusUnauthorized && refused.Code != http.StatusForbidden {
			t.Error(refused.Code)
		}
	}
	w := signIn("once", at)
	var session struct{ Key string }
	if err := json.Unmarshal(w.Body.Bytes(), &session); err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, err)
	}
	if again := signIn("once", at); again.Code != http.StatusUnauthorized {
		t.Errorf("the second time: %d", again.Code)
	}
	cookie := w.Result().Cookies()[0]
	if ask("GET", "/v1/sandboxes", at, "", "Cookie", cookie.Name+"="+cookie.Value); called != 0 {
		t.Error("the cookie alone opens it")
	}
	if ask("GET", "/v1/sandboxes", at, "", "Cookie", cookie.Name+"="+cookie.Value, "X-Console-Key", session.Key); called != 1 {
		t.Errorf("%d calls", called)
	}
}
