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
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// byTokenOrSignature also accepts a signature that was made with a sandbox's token, for one
// operation on one path as one user. Only the routes of /files accept it, and they read path and
// user from where it does.
func (s *server) byTokenOrSignature(req *http.Request) (*persistent.Sandbox, string, error) {
	query := req.URL.Query()
	if !query.Has("signature") {
		if _, sent := sentBy(req.Context()); !sent && req.Header.Get(sandboxHeader) == "" {
			return nil, "", errs.Unauthenticated("missing signature query parameter")
		}
		return s.byToken(req)
	}
	find := s.signed
	if _, sent := sentBy(req.Context()); sent { // the other host has checked the signature
		find = s.find
	}
	b, err := find(req)
	return b, query.Get("username"), err
}

// signed returns the sandbox whose token has signed a request for /files. No header names it. The
// errors are in E2B's words, which tests of clients hold on to.
func (s *server) signed(req *http.Request) (*persistent.Sandbox, error) {
	query := req.URL.Query()
	operation := "read"
	if req.Method == http.MethodPost {
		operation = "write"
	}
	at, user, expires := query.Get("path"), query.Get("username"), query.Get("signature_expiration")
	if len(at) > maxPath || strings.Contains(user, ":") { // otherwise part of a signed path could be passed off as a user
		return nil, errs.Unauthenticated(
			"the signature is not valid: there can be no such path or user")
	}
	given, what := []byte(query.Get("signature")), at+":"+operation+":"+user+":"
	id := s.signer(given, what, expires)
	if id == "" && s.cfg.Cluster != nil && s.mayAsk(&s.unknownSignatures, askedForSignature) {
		if _, err := s.cfg.Cluster.Entry.Names(req.Context()); err != nil {
			return nil, err
		}
		id = s.signer(given, what, expires)
	}
	if id == "" {
		return nil, errs.Unauthenticated("invalid signature")
	}
	if at, err := strconv.ParseInt(expires, 10, 64); expires != "" &&
		(err != nil || time.Now().Unix() > at) {
		return nil, errs.Unauthenticated("signature is already expired")
	}
	return s.cfg.Sandboxes.Any(id)
}

// signer returns the id of the sandbox whose token has made a signature; empty if none is known
// here.
func (s *server) signer(given []byte, what, expires string) string {
	for _, info := range s.cfg.Sandboxes.All() {
		if owner, known := s.cfg.Callers.Tokens.Named(info.Owner); known &&
			hmac.Equal(given, []byte(signature(what+s.accessToken(owner, info.ID), expires))) {
			return info.ID
		}
	}
	return ""
}

func signature(what, expires string) string {
	if expires != "" {
		what += ":" + expires
	}
	sum := sha256.Sum256([]byte(what))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
