package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// Secrets are the credentials that the guard puts into requests. Its methods are called from many
// goroutines at once, and must not wait for others; Value may read a file.
type Secrets interface {
	// For returns those of the named credentials that are for a user's requests to a host, whose
	// name is in canonical form.
	For(names []string, user, host string) []credential.Credential
	// Value returns what is put in, as long as nothing else of the credential has changed.
	Value(c credential.Credential) (string, error)
	// Leaf returns a certificate for a host that the containers with a credential for it trust.
	Leaf(c credential.Credential, host string) (*tls.Certificate, error)
	// Changed returns a channel that is closed when a credential is set or removed.
	Changed() <-chan struct{}
}

// reading is a TLS connection that is ended here, because a credential may be put into its requests.
// The client's half and the origin's speak the same protocol, which the origin has chosen of those
// that the client offers.
type reading struct {
	name     string // that the hello asks for: every request must be for it
	protocol string // "h2", or else HTTP/1.1

	// origins has one for each connection to the origin. Requests that come at once would make one
	// each, before the first is there.
	origins chan struct{}

	mu     sync.Mutex
	origin *tls.Conn // of the handshake; the first request takes it
	made   time.Time // when that was
	closed bool
	used   map[string]bool // the credentials that requests may have got
	puts   []put           // what they have got
}

const http2 = "h2"

// maxOrigins is more than one, because an origin may end a connection that has requests left.
const maxOrigins = 2

// maxUnused is how long an origin may have waited for the first request: servers hang up.
const maxUnused = 5 * time.Second

// take returns the connection of the handshake once, and then nil.
func (r *reading) take() *tls.Conn {
	r.mu.Lock()
	origin := r.origin
	r.origin = nil
	unused := time.Since(r.made)
	r.mu.Unlock()
	if origin != nil && unused > maxUnused {
		_ = origin.Close()
		return nil
	}
	return origin
}

// put keeps the connection of the handshake. It reports false if all has ended.
func (r *reading) put(origin *tls.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.origin, r.made = origin, time.Now()
	}
	return !r.closed
}

// got notes what a request has got.
func (r *reading) got(puts []put) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range puts {
		if !slices.ContainsFunc(r.puts, func(o put) bool { return o.Name == p.Name && o.value == p.value }) {
			r.puts = append(r.puts, p)
		}
	}
}

// redact replaces, in the fields of an answer, what requests of the connection have got.
func (r *reading) redact(fields http.Header) {
	r.mu.Lock()
	puts := r.puts
	r.mu.Unlock()
	for _, p := range puts {
		p.redact(fields)
	}
}

// use notes that requests may get credentials from now on.
func (r *reading) use(list []credential.Credential) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range list {
		if r.used == nil {
			r.used = map[string]bool{}
		}
		r.used[c.Name] = true
	}
}

func (r *reading) uses(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used[name]
}

// lost reports whether one of the credentials that were used is not among those that there are.
func (r *reading) lost(list []credential.Credential) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := 0
	for _, c := range list {
		if r.used[c.Name] {
			there++
		}
	}
	return there < len(r.used)
}

func (r *reading) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	if origin := r.take(); origin != nil {
		_ = origin.Close()
	}
}

// multiplexes reports whether several requests are served at once.
func (s *httpSession) multiplexes() bool {
	read := s.read.Load()
	return read != nil && read.protocol == http2
}

// isRead reports whether the session's TLS is to be ended here.
func (s *session) isRead() bool { return len(s.credentials(s.name)) > 0 }

// credentials returns those that may be put into requests to a name.
func (f *flow) credentials(name string) []credential.Credential {
	held := f.who.Secrets()
	if len(held) == 0 || f.guard.cfg.Secrets == nil {
		return nil
	}
	return f.guard.cfg.Secrets.For(held, f.who.User(), name)
}

// readMemory is what a connection that is read takes of this process, in bytes; requestMemory is
// what a request does beside that, with its head, and the answer that waits for the client.
const readMemory, requestMemory = 64 << 10, 512 << 10

// read ends the client's TLS, and gives the connection to the server of HTTP.
func (s *session) read() {
	h := &httpSession{flow: s.flow, life: s.life}
	if !s.guard.cfg.Budget.Read.Take(s.who.User(), readMemory) {
		s.refuse(&refusal{verdict: decisions.Limited, reason: reasonRead})
		s.leave()
		return
	}
	if !s.guard.clients.parse(s.flow) {
		s.guard.cfg.Budget.Read.Give(s.who.User(), readMemory)
		s.refuse(&refusal{verdict: decisions.Limited, reason: reasonTooMany})
		s.leave()
		return
	}
	s.flow.read.Store(&reading{name: s.name, origins: make(chan struct{}, maxOrigins)})
	s.guard.cfg.Budget.Descriptors.Give(s.who.User(), tlsDescriptors-httpDescriptors)
	c := &conn{socket: newSocket(s.client, h), early: s.hello.raw}
	h.socket = c.socket
	c.opaque = true
	s.guard.running.Add(1) // which its leave takes back
	told := false
	near := tls.Server(c, &tls.Config{GetConfigForClient: func(said *tls.ClientHelloInfo) (*tls.Config, error) {
		answer, refused := s.answer(h, said)
		if refused == nil {
			return answer, nil
		}
		if told = true; s.life.Err() == nil {
			s.decide(s.name, refused)
		}
		return nil, refused
	}})
	err := near.HandshakeContext(s.life)
	s.hello = nil
	s.free(0)
	if err == nil && s.guard.readers.give(near) {
		return
	}
	if !told && s.life.Err() == nil {
		reason := reasonHandshake
		if op, is := errors.AsType[*net.OpError](err); is && op.Op == "remote error" {
			reason = reasonDistrusted
		}
		s.decide(s.name, &refusal{verdict: decisions.Failed, reason: reason})
	}
	_ = s.client.SetDeadline(time.Now().Add(lingerTime))
	_ = near.Close()
	h.leave()
}

// answer connects to the origin, and returns how to answer the client's hello.
func (s *session) answer(h *httpSession, said *tls.ClientHelloInfo) (*tls.Config, *refusal) {
	name, refused := canonicalName(said.ServerName)
	if refused == nil && name != s.name {
		refused = malformed(reasonBadHello)
	}
	offered := slices.DeleteFunc(slices.Clone(said.SupportedProtos), func(p string) bool {
		return p != http2 && p != "http/1.1"
	})
	if refused == nil && len(offered) == 0 && len(said.SupportedProtos) > 0 {
		refused = &refusal{verdict: decisions.Denied, reason: reasonNotHTTP}
	}
	if refused != nil {
		return nil, refused
	}
	held := s.credentials(s.name)
	if len(held) == 0 { // they were taken away in this moment
		return nil, &refusal{verdict: decisions.Denied, reason: reasonTakenAway}
	}
	leaf, err := s.guard.cfg.Secrets.Leaf(held[0], s.name)
	if err != nil {
		s.guard.cfg.Logger.Error().Err(err).Str("name", s.name).Msg("cannot make a certificate")
		return nil, &refusal{verdict: decisions.Failed, reason: reasonNoLeaf}
	}
	stop := s.untilClientLeaves()
	origin, refused := h.connectTLS(s.life, offered)
	stop()
	if refused != nil {
		return nil, refused
	}
	read := s.flow.read.Load()
	read.protocol = origin.ConnectionState().NegotiatedProtocol
	if !read.put(origin) {
		_ = origin.Close()
		return nil, unreachable()
	}
	_ = s.client.SetDeadline(time.Now().Add(s.limits().HelloTimeout)) // net/http sets its own
	answer := &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12,
		SessionTicketsDisabled: true}
	if read.protocol != "" {
		answer.NextProtos = []string{read.protocol}
	}
	return answer, nil
}

// connectTLS connects to the origin of a connection that is read, and verifies its certificate.
func (s *httpSession) connectTLS(ctx context.Context, protocols []string) (*tls.Conn, *refusal) {
	name, origins := s.read.Load().name, s.read.Load().origins
	select {
	case origins <- struct{}{}:
	case <-ctx.Done(): // another connection serves what this one was for, or nothing does
		return nil, unreachable()
	}
	c, to, refused := s.connect(ctx, name)
	if refused != nil {
		<-origins
		return nil, refused
	}
	origin := &originConn{socket: newSocket(s.guard.newEnd(c, s.who.User(), &s.owned), s), to: to, origins: origins}
	origin.opaque = true
	ctx, cancel := context.WithTimeout(ctx, s.guard.cfg.Limits.AnswerTimeout)
	defer cancel()
	cfg := &tls.Config{ServerName: name, NextProtos: protocols, MinVersion: tls.VersionTLS12}
	if roots := s.guard.cfg.Roots; roots != nil {
		cfg.RootCAs = roots()
	}
	secure := tls.Client(origin, cfg)
	err := secure.HandshakeContext(ctx)
	if err == nil {
		return secure, nil
	}
	_ = origin.Close()
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return nil, &refusal{verdict: decisions.Failed, reason: reasonBadCertificate}
	}
	return nil, &refusal{verdict: decisions.Failed, reason: reasonUpstream}
}

// readTransport makes the transport of a connection that is read speak the protocol of its
// handshake.
func (s *httpSession) readTransport(t *http.Transport) *http.Transport {
	read := s.read.Load()
	t.DialContext = nil
	t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		s.rest()
		if origin := read.take(); origin != nil {
			return origin, nil
		}
		var offered []string
		if read.protocol != "" {
			offered = []string{read.protocol}
		}
		origin, refused := s.connectTLS(ctx, offered)
		if refused != nil {
			return nil, refused
		}
		if origin.ConnectionState().NegotiatedProtocol != read.protocol {
			_ = origin.Close()
			return nil, &refusal{verdict: decisions.Failed, reason: reasonUpstream}
		}
		return origin, nil
	}
	t.IdleConnTimeout = s.guard.cfg.Limits.HTTPIdle // a handshake costs more than a descriptor
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(!s.multiplexes())
	t.Protocols.SetHTTP2(s.multiplexes())
	t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: requestMemory}
	return t
}

// newReader returns the server of the connections that are read.
func (g *Guard) newReader() *http.Server {
	server := g.newServer()
	server.Protocols.SetHTTP2(true)
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100,
		MaxReceiveBufferPerConnection: 4 * readMemory, MaxReceiveBufferPerStream: readMemory,
		MaxReadFrameSize: 16 << 10} // for a frame of more, memory is taken before it has come
	return server
}

// handover is a listener whose connections have been accepted already.
type handover struct {
	conns chan net.Conn
	life  context.Context // the guard's
}

// give waits until net/http has taken a connection. It reports false if the guard ends.
func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.life.Done():
		return false
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.life.Done():
		return nil, net.ErrClosed
	}
}

// Close and Addr implement net.Listener. It ends with the guard.
func (h *handover) Close() error   { return nil }
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }

// watchSecrets ends the connections that are read for a credential which their clients may not have
// any more, until the guard ends.
func (g *Guard) watchSecrets(life context.Context) {
	for changed := g.cfg.Secrets.Changed(); ; changed = g.cfg.Secrets.Changed() {
		g.recheckSecrets()
		select {
		case <-changed:
		case <-life.Done():
			return
		}
	}
}

func (g *Guard) recheckSecrets() {
	g.clients.mu.Lock()
	defer g.clients.mu.Unlock()
	for _, t := range g.clients.active {
		for f := range t.flows {
			if read := f.read.Load(); read != nil && read.lost(f.credentials(read.name)) {
				go f.abort() // which may wait for turns
			}
		}
	}
}
