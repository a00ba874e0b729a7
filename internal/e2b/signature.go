package e2b

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/lasting"
)

// byTokenOrSignature takes also a signature that was made with a sandbox's token, for one operation on one path as one user.
// The routes of /files alone take it, and read path and user where this does.
func (s *server) byTokenOrSignature(req *http.Request) (*lasting.Sandbox, string, error) {
	query := req.URL.Query()
	if !query.Has("signature") {
		return s.byToken(req)
	}
	find := s.signed
	if _, sent := sentBy(req.Context()); sent { // the signature was checked
		find = s.find
	}
	b, err := find(req)
	return b, query.Get("username"), err
}

// signed finds the sandbox with whose token a request for /files was signed. No header says which it is.
func (s *server) signed(req *http.Request) (*lasting.Sandbox, error) {
	query := req.URL.Query()
	operation := "read"
	if req.Method == http.MethodPost {
		operation = "write"
	}
	at, user, expires := query.Get("path"), query.Get("username"), query.Get("signature_expiration")
	if len(at) > maxPath || strings.Contains(user, ":") { // as part of a user, the end of a path would be signed, too
		return nil, errs.Unauthenticated("the signature is that of no path and user that there can be")
	}
	given, what := []byte(query.Get("signature")), at+":"+operation+":"+user+":"
	for _, info := range s.cfg.Sandboxes.All() {
		owner, known := s.cfg.Tokens.Named(info.Owner)
		if !known || !hmac.Equal(given, []byte(signature(what+s.accessToken(owner, info.ID), expires))) {
			continue
		}
		if at, err := strconv.ParseInt(expires, 10, 64); expires != "" && (err != nil || time.Now().Unix() > at) {
			return nil, errs.Unauthenticated("the signature has expired: ask for another URL")
		}
		return s.cfg.Sandboxes.Any(info.ID)
	}
	return nil, errs.Unauthenticated("the signature is that of no sandbox for this path, operation and user")
}

func signature(what, expires string) string {
	if expires != "" {
		what += ":" + expires
	}
	sum := sha256.Sum256([]byte(what))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
