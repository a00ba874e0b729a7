package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Config says where a service is, and who calls it. Exactly one of Socket and URL is set.
type Config struct {
	// Socket is the service's Unix socket.
	Socket string
	// URL is the service's TCP address: https://host:port, or http://host:port without TLS.
	URL string
	// Token is the caller's token; it is for URL only.
	Token string
	// TLS is for https; nil trusts the authorities that the host trusts and has no client
	// certificate. Open copies it.
	TLS *tls.Config
	// WrapTransport wraps the transport, for callers who want to observe requests; nil for none.
	// Downloads do not use it.
	WrapTransport func(http.RoundTripper) http.RoundTripper
}

// New returns a client for the service at a Unix socket. It connects at the first call.
func New(socket string) *Client { return newClient(service{socket: socket}, nil) }

// Open is like New, but also supports services on TCP.
func Open(cfg Config) (*Client, error) {
	switch {
	case (cfg.Socket == "") == (cfg.URL == ""):
		return nil, errors.New("cannot call a service: one of Socket and URL has to be set")
	case cfg.Socket != "":
		return newClient(service{socket: cfg.Socket}, cfg.WrapTransport), nil
	}
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Host == "" || base.Port() == "" ||
		(base.Scheme != "http" && base.Scheme != "https") ||
		base.User != nil || base.RawQuery != "" || base.Fragment != "" ||
		(base.Path != "" && base.Path != "/") {
		return nil, fmt.Errorf(
			"cannot call %.200q: want a URL such as https://sandbox.example.org:7480", cfg.URL)
	}
	if cfg.Token == "" {
		return nil, fmt.Errorf("cannot call %s: a service on TCP needs a token", cfg.URL)
	}
	to := service{base: base, token: cfg.Token}
	if base.Scheme == "https" {
		to.tls = &tls.Config{}
		if cfg.TLS != nil {
			to.tls = cfg.TLS.Clone()
		}
		if to.tls.ServerName == "" {
			to.tls.ServerName = base.Hostname()
		}
		to.tls.MinVersion = max(to.tls.MinVersion, tls.VersionTLS12)
		to.tls.NextProtos = []string{"http/1.1"} // WebSockets need it
	}
	return newClient(to, cfg.WrapTransport), nil
}

func newClient(to service, wrap func(http.RoundTripper) http.RoundTripper) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return to.dial(ctx) }
	var transport http.RoundTripper = addressed{to, &http.Transport{
		DialContext: dial, DialTLSContext: dial,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     time.Minute,
		// An upload waits this long for the service to take or refuse it.
		ExpectContinueTimeout: time.Minute,
	}}
	if wrap != nil {
		transport = wrap(transport)
	}
	return &Client{to: to, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the service never redirects
	}}
}

// service is the address of a service.
type service struct {
	socket string // or else:
	base   *url.URL
	token  string
	tls    *tls.Config // nil for http
}

func (s service) String() string {
	if s.base == nil {
		return s.socket
	}
	return s.base.String()
}

// dial connects; over https, it also completes the handshake.
func (s service) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	switch {
	case s.base == nil:
		return d.DialContext(ctx, "unix", s.socket)
	case s.tls == nil:
		return d.DialContext(ctx, "tcp", s.base.Host)
	default:
		return (&tls.Dialer{NetDialer: &d, Config: s.tls}).DialContext(ctx, "tcp", s.base.Host)
	}
}

// address directs a request to this service.
func (s service) address(request *http.Request) {
	if s.base == nil {
		return
	}
	request.URL.Scheme, request.URL.Host, request.Host = s.base.Scheme, s.base.Host, s.base.Host
	request.Header.Set("Authorization", "Bearer "+s.token)
}

// addressed sends every request to one service, whatever host the request names.
type addressed struct {
	to   service
	next *http.Transport
}

func (a addressed) RoundTrip(request *http.Request) (*http.Response, error) {
	if a.to.base == nil {
		return a.next.RoundTrip(request)
	}
	own := request.Clone(request.Context())
	a.to.address(own)
	return a.next.RoundTrip(own)
}

// CloseIdleConnections is called by http.Client.
func (a addressed) CloseIdleConnections() { a.next.CloseIdleConnections() }
