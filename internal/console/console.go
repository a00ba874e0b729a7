// Package console serves the console: a page that shows what the service does, and speaks its API alone. The page is embedded, and
// loads nothing from elsewhere.
//
// Who signs in shows a secret once and gets a session: a cookie, which the browser sends, and a key, which the page keeps in its own
// origin's storage and sends with each request. Both are needed, for reading, too: a cookie is shared by all ports of a host, so
// that a server at another one may come to have it; the key it never has. A session ends after 12 hours, or with what its secret stands for.
//
// The cookie has the session in it, sealed, so that it outlives the service that began it.
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
)

//go:embed assets
var assets embed.FS

// Config is what a console needs; all must be set.
type Config struct {
	// API answers /v1/ and whatever is not the console's. Requests of a session have its authorization, and no Origin.
	API http.Handler
	// SignIn returns the Authorization header that a secret stands for; it may be empty. It is asked once for each session.
	SignIn func(secret string) (authorization string, ok bool)
	// Admit refuses requests that a browser was talked into, by the name that it calls us.
	Admit func(*http.Request) error
	// SealKey, of 32 bytes, seals cookies: whoever has it and a cookie has what the session stands for.
	SealKey []byte
}

const (
	cookieName = "sandbox-console"
	keyHeader  = "X-Console-Key"
	// sessionTime is how long a session lasts.
	sessionTime = 12 * time.Hour
	// maxEnded is how many sessions are remembered, each by itself, that were ended before their time.
	maxEnded  = 4096
	maxSecret = 4 << 10
)

// Console is an http.Handler in front of the API's.
type Console struct {
	cfg Config
	now func() time.Time

	seal cipher.AEAD

	mu    sync.Mutex
	ended map[[sha256.Size]byte]time.Time // by their cookie's hash: when they had begun
	// endedAll has, by authorization, until when all sessions were ended that had begun: what is used when ended is full.
	endedAll map[string]time.Time
	open     map[*request]bool
}

// request is one of a session that is being answered.
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

// New returns a console. The error is about SealKey.
func New(cfg Config) (*Console, error) {
	block, err := aes.NewCipher(cfg.SealKey)
	if err != nil {
		return nil, fmt.Errorf("cannot seal sessions: %w", err)
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	return &Console{cfg: cfg, now: time.Now, seal: seal, ended: map[[sha256.Size]byte]time.Time{}, endedAll: map[string]time.Time{}, open: map[*request]bool{}}, err
}

// ServeHTTP is http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/console":
		http.Redirect(w, req, "/console/", http.StatusPermanentRedirect)
	case strings.HasPrefix(req.URL.Path, "/console/"):
		c.serve(w, req)
	default:
		c.pass(w, req)
	}
}

// serve answers what is the console's own.
func (c *Console) serve(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
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
		http.Error(w, "the console's files can be read alone", http.StatusMethodNotAllowed)
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
		http.Error(w, "a session is begun with POST and ended with DELETE", http.StatusMethodNotAllowed)
	case req.Header.Get("Content-Type") != "application/json":
		http.Error(w, "want a body of application/json", http.StatusUnsupportedMediaType)
	default:
		c.signIn(w, req)
	}
}

func (c *Console) signIn(w http.ResponseWriter, req *http.Request) {
	var body struct{ Secret string }
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxSecret)).Decode(&body); err != nil {
		http.Error(w, `want {"secret": "…"}`, http.StatusBadRequest)
		return
	}
	authorization, ok := c.cfg.SignIn(body.Secret)
	if !ok {
		http.Error(w, "this token is not known, or the link was used before", http.StatusUnauthorized)
		return
	}
	key := rand.Text()
	text, err := json.Marshal(session{sha256.Sum256([]byte(key)), authorization, c.now()})
	if err != nil {
		panic(err) // of a struct of ours
	}
	cookie := base64.RawURLEncoding.EncodeToString(c.seal.Seal(nil, nil, text, nil))
	http.SetCookie(w, c.cookie(req, cookie, int(sessionTime.Seconds())))
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"key": key})
}

func (c *Console) cookie(req *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: req.TLS != nil,
	}
}

// end has a session be none from now on. Where too many were ended to remember each, all end that stand for the same.
func (c *Console) end(cookie [sha256.Size]byte, s session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.ended, func(_ [sha256.Size]byte, begun time.Time) bool { return c.now().Sub(begun) >= sessionTime })
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

// hold returns a context that ends with the session, whatever goes on in it.
func (c *Console) hold(ctx context.Context, cookie [sha256.Size]byte, s session) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, sessionTime-c.now().Sub(s.Begun))
	r := &request{cookie, s.Authorization, cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[r] = true
	if c.hasEnded(cookie, s) { // meanwhile
		cancel()
	}
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, r)
	}
}

// find returns the session of a request that has both halves of it.
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
	return cookie, s, !c.hasEnded(cookie, s) && c.now().Sub(s.Begun) < sessionTime && subtle.ConstantTimeCompare(key[:], s.Key[:]) == 1
}

// pass passes a request on. One that says that it is of a session, and is not, has no authorization.
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
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error":{"kind":"denied","message":"the session has ended: sign in again"}}` + "\n"))
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

// InSession reports whether a request that has come to the API is of a session.
func InSession(req *http.Request) bool { return req.Context().Value(sessionKey{}) != nil }

// sameOrigin reports whether a request comes from a page of the host and port that it is for.
func sameOrigin(req *http.Request) bool {
	origins := req.Header.Values("Origin")
	if len(origins) != 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && u.Host == req.Host && (u.Scheme == "http" || u.Scheme == "https")
}

func withoutOrigin(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Header.Del("Origin")
	return req
}
