package guard

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	http2frames "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// fakeSecrets are credentials, and the authority that the containers trust.
type fakeSecrets struct {
	key  *ecdsa.PrivateKey
	root *x509.Certificate

	mu      sync.Mutex
	list    []credential.Credential
	values  map[string]string
	changed chan struct{}
}

const (
	gitHub      = "daycare-secret-00000000000000000000000000000001"
	other       = "daycare-secret-00000000000000000000000000000002"
	gitHubValue = "the-value-of-github"
)

func newSecrets(t testing.TB, list ...credential.Credential) *fakeSecrets {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSecrets{key: key, root: root, list: list, values: map[string]string{}, changed: make(chan struct{})}
	for _, c := range list {
		s.values[c.Name] = "the-value-of-" + c.Name
	}
	return s
}

func (s *fakeSecrets) For(names []string, user, host string) (list []credential.Credential) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.list {
		if slices.Contains(names, c.Name) && c.Covers(host) && c.MayHave(user) {
			list = append(list, c)
		}
	}
	return list
}

func (s *fakeSecrets) Value(c credential.Credential) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value := s.values[c.Name]; value != "" {
		return value, nil
	}
	return "", errors.New("it cannot be opened")
}

func (s *fakeSecrets) Leaf(_ credential.Credential, host string) (*tls.Certificate, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{host}}
	der, err := x509.CreateCertificate(rand.Reader, template, s.root, s.key.Public(), s.key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: s.key}, err
}

func (s *fakeSecrets) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *fakeSecrets) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// bearer is a credential for allowed.example.
func bearer() credential.Credential {
	return credential.Credential{Name: "github", Hosts: []string{"allowed.example"}, Place: credential.Place{Header: "Authorization", Template: "Bearer {secret}"}, Placeholder: gitHub}
}

// reader is a rig whose client has all credentials, with an origin of HTTP over TLS.
type reader struct {
	*rig
	secrets *fakeSecrets
	roots   atomic.Pointer[x509.CertPool]
	seen    chan *http.Request // by the origin, whose bodies have been read
}

func newReader(t *testing.T, handler http.HandlerFunc, list ...credential.Credential) *reader {
	t.Helper()
	r := &reader{secrets: newSecrets(t, list...), seen: make(chan *http.Request, 100)}
	port := secureOrigin(t, func(w http.ResponseWriter, q *http.Request) {
		r.seen <- q
		handler(w, q)
	})
	r.roots.Store(trust())
	r.rig = newRig(t, port, 0, func(c *Config) { c.Secrets, c.Roots = r.secrets, r.roots.Load })
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	r.client.secrets.Store(&names)
	t.Cleanup(func() {
		eventually(t, "the budget of connections that are read is not given back", func() bool { return r.cfg.Budget.Read.Stats().Used == 0 })
	})
	return r
}

// secureOrigin serves HTTP over TLS, both versions.
func secureOrigin(t *testing.T, handler http.HandlerFunc) uint16 {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate()}}}
	go func() { _ = server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return portOf(l)
}

// browser is a client of one protocol whose connections all go to the guard, as to a host.
func (r *reader) browser(protocol, host string) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(r.secrets.root)
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: dialing(r.tls), TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: host}}
	transport.Protocols.SetHTTP1(protocol != "h2")
	transport.Protocols.SetHTTP2(protocol == "h2")
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 6 * patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and returns the answer with its body.
func (r *reader) do(c *http.Client, method, url string, change func(*http.Request)) (*http.Response, string) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if change != nil {
		change(q)
	}
	a, err := c.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a, string(body)
}

func eachProtocol(t *testing.T, test func(t *testing.T, protocol string)) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) { test(t, protocol) })
	}
}

func greets(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func TestACredentialIsPutIntoItsPlace(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		query := credential.Credential{Name: "maps", Hosts: []string{"allowed.example"}, Place: credential.Place{Query: "key"}, Paths: []string{"/maps"}, Placeholder: other}
		r := newReader(t, greets, bearer(), query)
		c := r.browser(protocol, "allowed.example")
		for sent, want := range map[string]string{
			"": "Bearer " + gitHubValue, "Bearer " + gitHub: "Bearer " + gitHubValue, "token " + gitHub: "token " + gitHubValue,
			"Bearer of somebody else": "Bearer " + gitHubValue,
		} {
			a, body := r.do(c, "GET", "https://allowed.example/user?page=2", func(q *http.Request) {
				if sent != "" {
					q.Header.Set("Authorization", sent)
				}
			})
			got := <-r.seen
			if a.StatusCode != 200 || body != "hello" || !slices.Equal(got.Header["Authorization"], []string{want}) || got.URL.RawQuery != "page=2" || got.Host != "allowed.example" {
				t.Errorf("for %q the origin got %q, %s of %s: %d %s", sent, got.Header["Authorization"], got.URL, got.Host, a.StatusCode, body)
			}
			if strings.ToUpper(got.Proto) != got.Proto || (got.ProtoMajor == 2) != (protocol == "h2") {
				t.Errorf("the origin speaks %s, the client %s", got.Proto, protocol)
			}
			d := r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
			if d.Via != "credential:github" || d.Type != "GET /user 200" {
				t.Errorf("via %s, %s", d.Via, d.Type)
			}
		}
		_, _ = r.do(c, "GET", "https://allowed.example/maps/x?key=mine&a=b&%6Bey=mine", nil)
		if got := <-r.seen; got.URL.RawQuery != "a=b&key=the-value-of-maps" {
			t.Errorf("the query is %s", got.URL.RawQuery)
		}
	})
}

func TestBasicAuthentication(t *testing.T) {
	c := bearer()
	c.Place = credential.Place{Basic: "x-access-token"}
	r := newReader(t, greets, c)
	_, _ = r.do(r.browser("h2", "allowed.example"), "GET", "https://allowed.example/", func(q *http.Request) { q.SetBasicAuth("me", gitHub) })
	if user, password, _ := (<-r.seen).BasicAuth(); user != "x-access-token" || password != gitHubValue {
		t.Errorf("%s:%s", user, password)
	}
}

// Whoever has no credential for a name has the origin's own certificate.
func TestWhatNoCredentialIsForIsNotRead(t *testing.T) {
	r := newReader(t, greets, bearer())
	for name, want := range map[string]bool{"allowed.example": true, "also.example": false} {
		c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if read := !c.ConnectionState().PeerCertificates[0].Equal(must(x509.ParseCertificate(certificate().Certificate[0]))); read != want {
			t.Errorf("%s is read: %v", name, read)
		}
		_ = c.Close()
	}
	r.client.secrets.Store(nil)
	c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", RootCAs: trust()})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// dialed is a TLS connection of a program's to a host, with a protocol.
func (r *reader) dialed(host string, protocols ...string) *tls.Conn {
	r.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(r.secrets.root)
	c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: host, RootCAs: pool, NextProtos: protocols})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// An answer that its origin cuts short does not look whole.
func TestAnAnswerThatIsCutShort(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		r := newReader(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "the first half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, bearer())
		a, err := r.browser(protocol, "allowed.example").Get("https://allowed.example/")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Body.Close() }()
		if body, err := io.ReadAll(a.Body); err == nil {
			t.Errorf("%q came in good order", body)
		}
	})
}

// A request whose client leaves before the answer has been made with the credential all the same.
func TestARequestThatIsGivenUpIsTold(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		r := newReader(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, bearer())
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-r.seen; cancel() }()
		if _, err := r.browser(protocol, "allowed.example").Do(must(http.NewRequestWithContext(ctx, "POST", "https://allowed.example/transfer", nil))); err == nil {
			t.Error("it was answered")
		}
		if d := r.decided(decisions.Allowed, "allowed.example", reasonAllowed); d.Via != "credential:github" || d.Type != "POST /transfer" {
			t.Errorf("%+v", d)
		}
	})
}

// HTTP/2 has no form for a method: this one would become a line of its own at a server of HTTP/1.1.
func TestAMethodThatIsNone(t *testing.T) {
	r := newReader(t, greets, bearer())
	for _, method := range []string{"DELETE /orgs/x HTTP/1.1", strings.Repeat("A", 40), "GET\t", ""} {
		c := r.dialed("allowed.example", "h2")
		_, _ = io.WriteString(c, http2frames.ClientPreface)
		frames := http2frames.NewFramer(c, c)
		frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		var head bytes.Buffer
		fields := hpack.NewEncoder(&head)
		for _, f := range [][2]string{{":method", method}, {":scheme", "https"}, {":authority", "allowed.example"}, {":path", "/repos/ok"}} {
			_ = fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		if err := errors.Join(frames.WriteSettings(), frames.WriteHeaders(http2frames.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true})); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			frame, err := frames.ReadFrame()
			if err != nil {
				break // the connection ended
			}
			switch f := frame.(type) {
			case *http2frames.MetaHeadersFrame:
				if answered = true; f.PseudoValue("status") != "400" {
					t.Errorf("%q got %s", method, f.PseudoValue("status"))
				}
			case *http2frames.RSTStreamFrame, *http2frames.GoAwayFrame:
				answered = true
			}
		}
	}
	if len(r.seen) > 0 {
		t.Errorf("%d requests reached the origin", len(r.seen))
	}
	for len(r.decisions) > 0 { // nor is the log a place for it
		if d := <-r.decisions; d.Verdict != decisions.Malformed || d.Type != "? /repos/ok" {
			t.Errorf("decided %+v", d)
		}
	}
}

// Some servers take a request for another one when a field says so.
func TestFieldsThatOverrideTheMethod(t *testing.T) {
	only := bearer()
	only.Methods = []string{"GET", "POST"}
	r := newReader(t, greets, only)
	_, _ = r.do(r.browser("h2", "allowed.example"), "POST", "https://allowed.example/", func(q *http.Request) {
		q.Header.Set("X-HTTP-Method-Override", "DELETE")
		q.Header.Set("X-Original-URL", "/admin")
	})
	if got := <-r.seen; got.Header.Get("X-Http-Method-Override")+got.Header.Get("X-Original-Url") != "" || got.Header.Get("Authorization") == "" {
		t.Errorf("the origin got %v", got.Header)
	}
}

// A field with the placeholder more than once would let a request grow without end.
func TestAPlaceholderOftenInOneField(t *testing.T) {
	r := newReader(t, greets, bearer())
	_, _ = r.do(r.browser("h2", "allowed.example"), "GET", "https://allowed.example/", func(q *http.Request) {
		q.Header["Authorization"] = []string{gitHub + " " + gitHub, "Bearer " + gitHub}
	})
	if got := (<-r.seen).Header["Authorization"]; !slices.Equal(got, []string{"Bearer " + gitHubValue}) {
		t.Errorf("the origin got %q", got)
	}
}

// None of these reaches the origin.
func TestRequestsThatGetNoCredential(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		elsewhere := credential.Credential{Name: "elsewhere", Hosts: []string{"also.example"}, Place: bearer().Place, Placeholder: other}
		r := newReader(t, greets, bearer(), elsewhere)
		for name, c := range map[string]struct {
			method, url string
			change      func(*http.Request)
			reason      string
		}{
			"another host": {"GET", "https://allowed.example/", func(q *http.Request) { q.Host = "also.example" }, reasonOtherHost},
			"another's placeholder": {"GET", "https://allowed.example/", func(q *http.Request) {
				q.Header.Set("X-Key", other)
			}, reasonPlaceholder},
			"in the query":  {"GET", "https://allowed.example/?x=" + other, nil, reasonPlaceholder},
			"in the path":   {"GET", "https://allowed.example/" + other + "/x", nil, reasonPlaceholder},
			"as a password": {"GET", "https://allowed.example/", func(q *http.Request) { q.SetBasicAuth("x", other) }, reasonPlaceholder},
		} {
			t.Run(name, func(t *testing.T) {
				a, body := r.do(r.browser(protocol, "allowed.example"), c.method, c.url, c.change)
				if a.StatusCode != 403 || !strings.Contains(body, c.reason) {
					t.Errorf("%d %s", a.StatusCode, body)
				}
				select {
				case d := <-r.decisions:
					if d.Verdict != decisions.Denied || d.Reason != c.reason || strings.Contains(d.Type, "?") {
						t.Errorf("decided %+v", d)
					}
				case <-time.After(patience):
					t.Error("nothing was decided")
				}
			})
		}
		if len(r.seen) > 0 {
			t.Errorf("%d requests reached the origin", len(r.seen))
		}
	})
}

func TestAPlaceholderOverPlainHTTP(t *testing.T) {
	reached := make(chan string, 1)
	port := httpOrigin(t, func(_ http.ResponseWriter, q *http.Request) { reached <- q.Header.Get("Authorization") })
	secrets := newSecrets(t, bearer())
	r := newRig(t, 0, port, func(c *Config) { c.Secrets = secrets })
	r.client.secrets.Store(&[]string{"github"})
	if status, body := ask(r, "GET / HTTP/1.1\r\nHost: allowed.example\r\nAuthorization: Bearer "+gitHub+"\r\n\r\n"); status != 403 || !strings.Contains(body, reasonPlaceholder) {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := ask(r, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"); status != 200 || <-reached != "" {
		t.Errorf("%d", status)
	}
}

func TestCredentialsThatCannotBePutIn(t *testing.T) {
	twice := bearer()
	twice.Name, twice.Placeholder = "twice", other
	for name, c := range map[string]struct {
		list   []credential.Credential
		damage func(*fakeSecrets)
		status int
		reason string
	}{
		"it cannot be opened": {[]credential.Credential{bearer()}, func(s *fakeSecrets) { s.values = nil }, 502, reasonSealed},
		"two for one place":   {[]credential.Credential{bearer(), twice}, func(*fakeSecrets) {}, 403, reasonAmbiguous},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReader(t, greets, c.list...)
			r.secrets.change(func() { c.damage(r.secrets) })
			if a, body := r.do(r.browser("h2", "allowed.example"), "GET", "https://allowed.example/", nil); a.StatusCode != c.status || !strings.Contains(body, c.reason) || len(r.seen) > 0 {
				t.Errorf("%d %s, %d reached the origin", a.StatusCode, body, len(r.seen))
			}
		})
	}
}

func TestMethodsAndPathsOfACredential(t *testing.T) {
	only := bearer()
	only.Methods, only.Paths = []string{"GET"}, []string{"/repos/"}
	r := newReader(t, greets, only)
	c := r.browser("http/1.1", "allowed.example")
	for request, want := range map[string]string{"GET /repos/x": "Bearer " + gitHubValue, "HEAD /repos/x": "Bearer " + gitHubValue, "POST /repos/x": "", "GET /user": "", "GET /repos/%2e%2e/user": ""} {
		method, path, _ := strings.Cut(request, " ")
		_, _ = r.do(c, method, "https://allowed.example"+path, nil)
		if got := (<-r.seen).Header.Get("Authorization"); got != want {
			t.Errorf("%s got %q", request, got)
		}
	}
}

// An origin that echoes a credential does not show it in fields; bodies are its own affair.
func TestAnEchoInFields(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
			h := w.Header()
			h.Set("Link", "<"+q.Header.Get("Authorization")+">")
			w.WriteHeader(http.StatusEarlyHints)
			h.Set("X-Echo", q.Header.Get("Authorization"))
			h.Set("Trailer", "X-Late")
			_, _ = io.WriteString(w, "body")
			h.Set("X-Late", q.Header.Get("Authorization"))
		}, bearer())
		a, _ := r.do(r.browser(protocol, "allowed.example"), "GET", "https://allowed.example/", nil)
		if a.Header.Get("X-Echo") != "Bearer "+gitHub || a.Trailer.Get("X-Late") != "Bearer "+gitHub {
			t.Errorf("%v, %v", a.Header, a.Trailer)
		}
		if all := fmt.Sprint(a.Header, a.Trailer); strings.Contains(all, gitHubValue) {
			t.Error(all)
		}
	})
}

func TestAnEchoInInterimAnswers(t *testing.T) {
	r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Link", "<"+q.Header.Get("Authorization")+">")
		w.WriteHeader(http.StatusEarlyHints)
	}, bearer())
	pool := x509.NewCertPool()
	pool.AddCert(r.secrets.root)
	c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", RootCAs: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
	if all := readAll(c); !strings.Contains(all, "103 Early Hints") || !strings.Contains(all, gitHub) || strings.Contains(all, gitHubValue) {
		t.Error(all)
	}
}

func TestAnOriginWhoseCertificateIsNotValid(t *testing.T) {
	r := newReader(t, greets, bearer())
	r.roots.Store(x509.NewCertPool())
	if _, err := r.browser("h2", "allowed.example").Get("https://allowed.example/"); err == nil || len(r.seen) > 0 {
		t.Errorf("%v, %d requests", err, len(r.seen))
	}
	r.decided(decisions.Failed, "allowed.example", reasonBadCertificate)
}

func TestAProgramThatTrustsNobodyElse(t *testing.T) {
	r := newReader(t, greets, bearer())
	if c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", RootCAs: trust()}); err == nil {
		_ = c.Close()
		t.Fatal("it has trusted the authority")
	}
	r.decided(decisions.Failed, "allowed.example", reasonDistrusted)
}

func TestAConnectionThatIsReadAndIsNotHTTP(t *testing.T) {
	r := newReader(t, greets, bearer())
	if c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", InsecureSkipVerify: true, NextProtos: []string{"imap"}}); err == nil {
		_ = c.Close()
		t.Error("it was accepted")
	}
	r.decided(decisions.Denied, "allowed.example", reasonNotHTTP)
}

// A new value is used from the next request on, and nothing ends. A credential that is taken away
// ends the connections that have used it, in the middle of an answer.
func TestACredentialChangesWhileItIsUsed(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
			_, _ = io.WriteString(w, "hello")
			_ = http.NewResponseController(w).Flush()
			if q.URL.Path == "/stream" {
				<-q.Context().Done()
			}
		}, bearer())
		c := r.browser(protocol, "allowed.example")
		for _, value := range []string{gitHubValue, "another"} {
			r.secrets.change(func() { r.secrets.values["github"] = value })
			_, _ = r.do(c, "GET", "https://allowed.example/", nil)
			if got := (<-r.seen).Header.Get("Authorization"); got != "Bearer "+value {
				t.Errorf("%s, not %s", got, value)
			}
		}
		q := must(http.NewRequestWithContext(t.Context(), "GET", "https://allowed.example/stream", nil))
		a, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Body.Close() }()
		if _, err := io.ReadFull(a.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		r.secrets.change(func() { r.secrets.list = nil })
		if rest, err := io.ReadAll(a.Body); err == nil {
			t.Errorf("the stream ended in good order, with %q", rest)
		}
		<-(<-r.seen).Context().Done()
	})
}

func TestBodiesPassBothWays(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol string) {
		r := newReader(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) }, bearer())
		text := strings.Repeat("0123456789abcdef", 1<<17)
		q := must(http.NewRequestWithContext(t.Context(), "POST", "https://allowed.example/", strings.NewReader(text)))
		a, err := r.browser(protocol, "allowed.example").Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Body.Close() }()
		if body, err := io.ReadAll(a.Body); err != nil || string(body) != text {
			t.Errorf("%d bytes came back, %v", len(body), err)
		}
	})
}

// Requests of one connection are served at once, and one that its client gives up ends at the
// origin, too.
func TestRequestsOfOneConnection(t *testing.T) {
	r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/wait" {
			<-q.Context().Done()
			return
		}
		greets(w, q)
	}, bearer())
	c := r.browser("h2", "allowed.example")
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() {
		a, err := c.Do(must(http.NewRequestWithContext(ctx, "GET", "https://allowed.example/wait", nil)))
		if err == nil {
			_ = a.Body.Close()
		}
		given <- err
	}()
	waiting := <-r.seen
	for range 10 {
		if _, body := r.do(c, "GET", "https://allowed.example/", nil); body != "hello" {
			t.Error(body)
		}
		if got := <-r.seen; got.RemoteAddr != waiting.RemoteAddr {
			t.Error("the origin has several connections for one of the client's")
		}
	}
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-waiting.Context().Done()
}

func TestAWebSocketOfAConnectionThatIsRead(t *testing.T) {
	r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = fmt.Fprintf(c, "HTTP/1.1 101 %[1]s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %[1]s\r\n\r\n", q.Header.Get("Authorization"))
		_, _ = io.Copy(c, buffered)
	}, bearer())
	pool := x509.NewCertPool()
	pool.AddCert(r.secrets.root)
	c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", RootCAs: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	from := bufio.NewReader(c)
	a, err := http.ReadResponse(from, nil)
	if err != nil || a.StatusCode != 101 || a.Header.Get("X-Echo") != "Bearer "+gitHub || strings.Contains(a.Status, gitHubValue) {
		t.Fatalf("%+v, %v", a, err)
	}
	_, _ = io.WriteString(c, "ping")
	got := make([]byte, 4)
	if _, err := io.ReadFull(from, got); err != nil || string(got) != "ping" {
		t.Errorf("%q, %v", got, err)
	}
}

// What net/http's server and transport would read differently is refused, or sent on as one request.
func TestSmuggling(t *testing.T) {
	r := newReader(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		greets(w, q)
	}, bearer())
	pool := x509.NewCertPool()
	pool.AddCert(r.secrets.root)
	for name, request := range map[string]string{
		"TE and CL":         "POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: also.example\r\n\r\n",
		"two lengths":       "POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x.example\r\n\r\n",
		"a bare CR":         "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: a\rAuthorization: mine\r\n\r\n",
		"folded":            "GET / HTTP/1.1\r\nHost: allowed.example\r\nX: a\r\n Host: also.example\r\n\r\n",
		"two hosts":         "GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: also.example\r\n\r\n",
		"absolute form":     "GET https://also.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"of plain HTTP":     "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"CONNECT":           "CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
		"an address":        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"h2c":               "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
		"its own taken out": "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: Authorization\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := tls.Dial("tcp", r.tls, &tls.Config{ServerName: "allowed.example", RootCAs: pool})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, request)
			_ = c.CloseWrite()
			_ = readAll(c)
			for len(r.seen) > 0 {
				got := <-r.seen
				if got.URL.Path == "/smuggled" || got.Host != "allowed.example" || got.Header.Get("Authorization") != "Bearer "+gitHubValue {
					t.Errorf("the origin got %s %s of %s, %q", got.Method, got.URL, got.Host, got.Header["Authorization"])
				}
			}
		})
	}
}
