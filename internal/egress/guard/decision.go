package guard

import "github.com/daycare-run/sandbox/internal/egress/decisions"

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
	reasonHalfClosed  = "the client had ended its half of the connection long before the answer"
	reasonBadBody     = "the client's request has a malformed body"
	reasonBadAnswer   = "the server's answer has a malformed body, or was cut short"
	reasonTooMany     = "too many connections are open"
	reasonSockets     = "budget used up: the user has too many connections open"
	reasonHellos      = "budget used up: too many bytes of the user's requests wait for servers"
	reasonPorts       = "budget used up: the user has too many connections to this address"
)

// refusal is a decision as an error.
type refusal struct {
	verdict decisions.Verdict
	reason  string
}

func (r *refusal) Error() string { return r.reason }

// decide reports a verdict about a name in canonical form, which is empty when none could be read.
func (f *flow) decide(name string, r *refusal) {
	if name == "" && (r.verdict == decisions.Denied || r.verdict == decisions.Malformed) {
		name = f.who.Asked(f.to.Unmap())
	}
	via := decisions.TLS
	if f.plain {
		via = decisions.HTTP
	}
	f.guard.cfg.Network.Decided(decisions.Decision{
		User: f.who.User(), Container: f.who.ID(), Name: name, Via: via, Port: f.port,
		Verdict: r.verdict, Reason: r.reason,
	})
}
