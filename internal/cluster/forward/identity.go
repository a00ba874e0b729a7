package forward

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// header has what a host says about a call that it sends. It is read only in calls from hosts.
const header = "X-Daycare-Call"

// about is what a host says about a call that it sends.
type about struct {
	Caller   string      `json:"caller"`
	Everyone bool        `json:"everyone"` // the caller acts for all users
	Users    []string    `json:"users"`    // or for these; an empty list means no user
	Token    quota.Token `json:"token"`
	User     string      `json:"user"` // the user whose call it is
	Epoch    int64       `json:"epoch"`
	// Wire names the surface that is to answer the call, and Remote is the address of the caller's
	// connection.
	Wire   string `json:"wire,omitempty"`
	Remote string `json:"remote,omitempty"`
}

func (a about) write(h http.Header) error {
	text, err := json.Marshal(a)
	h.Set(header, base64.StdEncoding.EncodeToString(text))
	return err
}

func read(req *http.Request) (a about, _ error) {
	text, err := base64.StdEncoding.DecodeString(req.Header.Get(header))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil || a.Caller == "" {
		return about{},
			errs.Denied(
				"only hosts of the cluster may call here, and this one does not say for which caller")
	}
	return a, nil
}

// E2B is the wire of E2B's clients. The API's wire has an empty name.
const E2B = "e2b"

// recordsOf has, by wire, the kind of the records that the calls are about.
var recordsOf = map[string]string{"": "sandboxes", E2B: Persistent}

// Persistent is the kind of the records of persistent sandboxes.
const Persistent = "lasting"

// Received returns a call that another host has sent, as it came to that host, and its wire.
func Received(req *http.Request) (_ *http.Request, wire string) {
	a, err := read(req)
	if err != nil || a.Wire == "" {
		return req, ""
	}
	req = req.Clone(req.Context())
	req.RemoteAddr = a.Remote
	req.Header.Del("Expect") // this host has answered that
	return req, a.Wire
}

// Caller authenticates a call that another host has sent.
func Caller(req *http.Request) (access.Caller, error) {
	caller, _, err := Inbound{}.Sender(req)
	return caller, err
}

// Sender authenticates a call that another host has sent. TLS has verified that the sender is a
// host, and the host says who the caller is and which user the call is about.
func (Inbound) Sender(req *http.Request) (_ access.Caller, user string, _ error) {
	if req.TLS == nil || len(req.TLS.VerifiedChains) == 0 {
		return access.Caller{}, "", errs.Denied("only hosts of the cluster may call here")
	}
	a, err := read(req)
	if err != nil {
		return access.Caller{}, "", err
	}
	caller := access.Caller{Name: a.Caller, Users: ids.Everyone(), Token: a.Token}
	if a.Everyone {
		return caller, a.User, nil
	}
	var users []ids.User
	for _, name := range a.Users {
		id, err := ids.ParseUser(name)
		if err != nil {
			return access.Caller{}, "", err
		}
		users = append(users, id)
	}
	caller.Users = ids.OnlyUsers(users...)
	return caller, a.User, nil
}

// Certificates are a host's own certificate and the authority that has signed those of all hosts.
type Certificates struct {
	own       tls.Certificate
	authority *x509.CertPool
}

// ReadCertificates reads Certificates from PEM files.
func ReadCertificates(authority, certificate, key string) (c Certificates, err error) {
	text, err := os.ReadFile(authority)
	if err != nil {
		return c, fmt.Errorf("cannot use cluster.caFile: %w", err)
	}
	c.authority = x509.NewCertPool()
	if !c.authority.AppendCertsFromPEM(text) {
		return c, fmt.Errorf("cannot use cluster.caFile: %s has no certificate", authority)
	}
	if c.own, err = tls.LoadX509KeyPair(certificate, key); err != nil {
		return c, fmt.Errorf("cannot use cluster.certFile and cluster.keyFile: %w", err)
	}
	return c, nil
}

// server returns the TLS settings of the listener for other hosts: it rejects peers without a
// certificate of the authority.
func (c Certificates) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.authority,
		NextProtos: []string{"http/1.1"}, // because streams may be WebSockets
	}
}

// Client returns the TLS settings for calling a host by its name. With an empty name, that in the
// address counts, as for etcd.
func (c Certificates) Client(host string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.own},
		RootCAs: c.authority, ServerName: host}
}
