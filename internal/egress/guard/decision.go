package guard

import "net/netip"

// Verdict is what became of one TLS connection or one HTTP request.
type Verdict string

const (
	// Allowed means that the guard connected to the name and passed the request on.
	Allowed Verdict = "allowed"
	// Denied means that the policy forbids it.
	Denied Verdict = "denied"
	// Malformed means that no name could be read from what the program sent.
	Malformed Verdict = "malformed"
	// Failed means that the name is allowed but could not be reached.
	Failed Verdict = "failed"
	// Limited means that the client or its user has used up what it may have.
	Limited Verdict = "limited"
)

// Reasons are the same words for every case of a kind, so that they can be counted.
const (
	reasonAllowed     = "the name is allowed"
	reasonNotAllowed  = "the name is not allowed for this call"
	reasonNoName      = "no name was asked for, only an address"
	reasonAddress     = "an address was asked for instead of a name"
	reasonBadName     = "what was asked for is not a host name"
	reasonBadPort     = "the request names another port than the one it was sent to"
	reasonConnect     = "CONNECT is not allowed: there is no proxy to ask"
	reasonNotPublic   = "the name has no address that this call may reach"
	reasonOtherName   = "the second ClientHello asks for another name"
	reasonNotTLS      = "what was sent to the TLS port is not TLS"
	reasonBadHello    = "the ClientHello is malformed"
	reasonBadRequest  = "what was sent is not a valid HTTP request"
	reasonTooLarge    = "the ClientHello is too large"
	reasonTooSlow     = "the ClientHello did not come in time"
	reasonCutShort    = "the ClientHello was cut short"
	reasonUnresolved  = "the name could not be resolved"
	reasonUnreachable = "no address of the name could be connected to"
	reasonUpstream    = "the server did not answer properly"
	reasonBadBody     = "the client's request has a malformed body"
	reasonBadAnswer   = "the server's answer has a malformed body, or was cut short"
	reasonTooMany     = "too many connections are open"
	reasonSockets     = "budget used up: the user has too many connections open"
	reasonHellos      = "budget used up: too much of what the user has said waits for servers"
	reasonPorts       = "budget used up: the user has too many connections to this address"
)

// Decision is one verdict.
type Decision struct {
	// Endpoint and Source made the request.
	Endpoint Endpoint
	Source   netip.Addr
	// Name is what was asked for in canonical form; it is empty when no name could be read.
	Name string
	// Port is 443 for TLS and 80 for HTTP, unless the Config says otherwise.
	Port    uint16
	Verdict Verdict
	// Reason is one of a fixed set of sentences.
	Reason string
	// Err is the cause where there is one. It is for a log.
	Err error
}

// refusal is an error that is a decision.
type refusal struct {
	verdict Verdict
	reason  string
	err     error
}

func (r *refusal) Error() string {
	if r.err != nil {
		return r.reason + ": " + r.err.Error()
	}
	return r.reason
}

func (r *refusal) Unwrap() error { return r.err }

// decide reports a verdict.
func (f *flow) decide(name string, r *refusal) {
	f.guard.cfg.Decided(Decision{
		Endpoint: f.endpoint, Source: f.who.source, Name: name, Port: f.port,
		Verdict: r.verdict, Reason: r.reason, Err: r.err,
	})
}
