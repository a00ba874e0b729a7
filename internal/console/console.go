// Package console serves the console: a page that shows what the service does, and that uses only
// its API. The page is embedded, and loads nothing from elsewhere.
//
// Signing in takes a secret once and returns a session: a cookie, which the browser sends, and a
// key, which the page keeps in its origin's storage and sends with each request. Both are needed,
// even for reading: the ports of a host share cookies, so a server at another port may get the
// cookie, but never the key. A session ends after 12 hours, or with what its secret stands for.
//
// The cookie contains the sealed session, so the session survives a restart of the service.
package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/pace"
)

//go:embed assets
var assets embed.FS

// Config configures a console; all fields must be set.
type Config struct {
	// API answers /v1/ and everything else that is not the console's. A session's requests have its
	// authorization, and no Origin.
	API http.Handler
	// SignIn returns the Authorization header for a secret; it may be empty. It is called once per
	// session.
	SignIn func(secret string) (authorization string, ok bool)
	// Admit refuses requests that a browser was tricked into, by the name under which it calls the
	// service.
	Admit func(*http.Request) error
	// SealKey, of 32 bytes, seals cookies: whoever has it and a cookie has the session's rights.
	SealKey []byte
}

const (
	cookieName = "sandbox-console"
	keyHeader  = "X-Console-Key"
	// sessionTime is how long a session lasts.
	sessionTime = 12 * time.Hour
	// maxEnded is how many sessions that were ended early are remembered individually.
	maxEnded  = 4096
	maxSecret = 4 << 10
)

// Console is an http.Handler in front of the API.
type Console struct {
	cfg Config
	now func() time.Time

	seal cipher.AEAD

	mu    sync.Mutex
	ended map[[sha256.Size]byte]time.Time // by hash of the cookie: when the session began
	// endedAll has, by authorization, the time up to which sessions that had begun were all ended.
	// It is used when ended is full.
	endedAll map[string]time.Time
	open     map[*request]bool
}

// request is a request of a session that is being answered.
type request struct {
	cookie        [sha256.Size]byte
	authorization string
	cancel        context.CancelFunc
}

type session struct {
	Key           [sha256.Size]byte // its hash
	Authorization string
	Begun         time.Time
}

// New returns a console. An error is about SealKey.
func New(cfg Config) (*Console, error) {
	block, err := aes.NewCipher(cfg.SealKey)
	if err != nil {
		return nil, fmt.Errorf("cannot seal sessions: %w", err)
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	return &Console{cfg: cfg, now: time.Now, seal: seal, ended: map[[sha256.Size]byte]time.Time{},
		endedAll: map[string]time.Time{}, open: map[*request]bool{}}, err
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/" && (req.Method == http.MethodGet || req.Method == http.MethodHead):
		http.Redirect(w, paced(w, req), "/console/", http.StatusTemporaryRedirect) // the API has nothing there
	case req.URL.Path == "/console":
		http.Redirect(w, paced(w, req), "/console/", http.StatusPermanentRedirect)
	case strings.HasPrefix(req.URL.Path, "/console/"):
		c.serve(w, paced(w, req))
	default:
		c.pass(w, req)
	}
}

// paced returns a request that the API does not answer: its body has to arrive in time, even if
// nobody reads it.
func paced(w http.ResponseWriter, req *http.Request) *http.Request {
	if req.ContentLength == 0 {
		return req
	}
	req = req.WithContext(req.Context()) // a copy: net/http depends on the type of its own body
	req.Body = pace.Body(w, req.Body, pace.Delay)
	return req
}

// serve answers requests for the console's own paths.
func (c *Console) serve(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache")
	if sameOrigin(req) {
		req = withoutOrigin(req)
	}
	if err := c.cfg.Admit(req); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if req.URL.Path == "/console/session" {
		c.session(w, req)
		return
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.Error(w, "the console's files are read-only", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(req.URL.Path, "/console/")
	if name == "" {
		name = "index.html"
	}
	text, err := fs.ReadFile(assets, path.Join("assets", name))
	if err != nil {
		http.Error(w, "the console has no such file", http.StatusNotFound)
		return
	}
	header.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	_, _ = w.Write(text)
}

// session begins a session with POST, and ends it with DELETE.
func (c *Console) session(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.Method == http.MethodDelete:
		if cookie, s, ok := c.find(req); ok {
			c.end(cookie, s)
		}
		http.SetCookie(w, c.cookie(req, "", -1))
		w.WriteHeader(http.StatusNoContent)
	case req.Method != http.MethodPost:
		http.Error(w, "a session is begun with POST and ended with DELETE",
			http.StatusMethodNotAllowed)
	case req.Header.Get("Content-Type") != "application/json":
		http.Error(w, "want a body of application/json", http.StatusUnsupportedMediaType)
	default:
		c.signIn(w, req)
	}
}

func (c *Console) signIn(w http.ResponseWriter, req *http.Request) {
	var body struct{ Secret string }
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxSecret)).
		Decode(&body); err != nil {
		http.Error(w, `want {"secret": "…"}`, http.StatusBadRequest)
		return
	}
	authorization, ok := c.cfg.SignIn(body.Secret)
	if !ok {
		http.Error(w, "this token is not known, or the link was used before",
			http.StatusUnauthorized)
		return
	}
	key := rand.Text()
	text, err := json.Marshal(session{sha256.Sum256([]byte(key)), authorization, c.now()})
	if err != nil {
		panic(err) // it is our own struct
	}
	cookie := base64.RawURLEncoding.EncodeToString(c.seal.Seal(nil, nil, text, nil))
	http.SetCookie(w, c.cookie(req, cookie, int(sessionTime.Seconds())))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"key": key})
}

func (c *Console) cookie(req *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: req.TLS != nil,
	}
}

// end ends a session now. If too many were ended to remember each one, it ends all with the same
// authorization.
func (c *Console) end(cookie [sha256.Size]byte, s session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.ended, func(_ [sha256.Size]byte, begun time.Time) bool {
		return c.now().Sub(begun) >= sessionTime
	})
	full := len(c.ended) >= maxEnded
	if full {
		c.endedAll[s.Authorization] = c.now()
	} else {
		c.ended[cookie] = s.Begun
	}
	for r := range c.open {
		if r.cookie == cookie || full && r.authorization == s.Authorization {
			r.cancel()
		}
	}
}

// hasEnded reports whether a session was ended before its time. The caller holds mu.
func (c *Console) hasEnded(cookie [sha256.Size]byte, s session) bool {
	_, ended := c.ended[cookie]
	return ended || !s.Begun.After(c.endedAll[s.Authorization])
}

// hold returns a context that ends with the session, in whatever way that ends.
func (c *Console) hold(ctx context.Context, cookie [sha256.Size]byte,
	s session) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, sessionTime-c.now().Sub(s.Begun))
	r := &request{cookie, s.Authorization, cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[r] = true
	if c.hasEnded(cookie, s) { // it was ended meanwhile
		cancel()
	}
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, r)
	}
}

// find returns the session of a request that has both its cookie and its key.
func (c *Console) find(req *http.Request) (cookie [sha256.Size]byte, s session, ok bool) {
	given, err := req.Cookie(cookieName)
	if err != nil {
		return cookie, s, false
	}
	sealed, err := base64.RawURLEncoding.DecodeString(given.Value)
	if err != nil {
		return cookie, s, false
	}
	text, err := c.seal.Open(nil, nil, sealed, nil)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return cookie, s, false
	}
	cookie = sha256.Sum256(sealed)
	key := sha256.Sum256([]byte(req.Header.Get(keyHeader)))
	c.mu.Lock()
	defer c.mu.Unlock()
	return cookie, s, !c.hasEnded(cookie, s) && c.now().Sub(s.Begun) < sessionTime &&
		subtle.ConstantTimeCompare(key[:], s.Key[:]) == 1
}

// pass passes a request on to the API. A request that has a session's key, but no valid session, is
// refused.
func (c *Console) pass(w http.ResponseWriter, req *http.Request) {
	if req.Header.Get(keyHeader) == "" {
		c.cfg.API.ServeHTTP(w, req)
		return
	}
	cookie, s, ok := c.find(req)
	if req.Header.Get("Origin") != "" && !sameOrigin(req) {
		ok = false
	}
	if !ok {
		paced(w, req)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write(
			[]byte(`{"error":{"kind":"denied","message":"the session has ended: sign in again"}}` +
				"\n"))
		return
	}
	req = withoutOrigin(req)
	req.Header.Del("Cookie")
	req.Header.Del(keyHeader)
	req.Header.Del("Authorization")
	if s.Authorization != "" {
		req.Header.Set("Authorization", s.Authorization)
	}
	ctx, release := c.hold(context.WithValue(req.Context(), sessionKey{}, true), cookie, s)
	defer release()
	c.cfg.API.ServeHTTP(w, req.WithContext(ctx))
}

type sessionKey struct{}

// InSession reports whether a request that reached the API belongs to a session.
func InSession(req *http.Request) bool { return req.Context().Value(sessionKey{}) != nil }

// sameOrigin reports whether a request comes from a page of the same host and port.
func sameOrigin(req *http.Request) bool {
	origins := req.Header.Values("Origin")
	if len(origins) != 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && u.Host == req.Host &&
		(u.Scheme == "http" || u.Scheme == "https")
}

func withoutOrigin(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Origin")
	return req
}
