package guard

import "github.com/daycare-run/sandbox/internal/egress/decisions"

// Reasons are the same words for every case of a kind, so that they can be counted.
const (
	reasonAllowed        = "the name is allowed"
	reasonNotAllowed     = "the name is not allowed for this call"
	reasonNoName         = "no name was asked for, only an address"
	reasonAddress        = "an address was asked for instead of a name"
	reasonBadName        = "what was asked for is not a host name"
	reasonBadPort        = "the request names another port than the one it was sent to"
	reasonConnect        = "CONNECT is not allowed: there is no proxy to ask"
	reasonNotPublic      = "the name has no address that this call may reach"
	reasonOtherName      = "the second ClientHello asks for another name"
	reasonOtherHost      = "the request is for another host than the connection"
	reasonPlaceholder    = "what stands for a credential would go where that is not for"
	reasonAmbiguous      = "several credentials are for the same place of this request"
	reasonNotHTTP        = "the connection is read for a credential, and offers no protocol but others than HTTP"
	reasonNotTLS         = "what was sent to the TLS port is not TLS"
	reasonBadHello       = "the ClientHello is malformed"
	reasonBadRequest     = "what was sent is not a valid HTTP request"
	reasonTooLarge       = "the ClientHello is too large"
	reasonTooSlow        = "the ClientHello did not come in time"
	reasonCutShort       = "the ClientHello was cut short"
	reasonUnresolved     = "the name could not be resolved"
	reasonUnreachable    = "no address of the name could be connected to"
	reasonUpstream       = "the server did not answer properly"
	reasonHalfClosed     = "the client had ended its half of the connection long before the answer"
	reasonBadBody        = "the client's request has a malformed body"
	reasonBadAnswer      = "the server's answer has a malformed body, or was cut short"
	reasonBadCertificate = "the server's certificate is not valid for the name"
	reasonDistrusted     = "the program does not trust the authority of the certificate that a credential needs"
	reasonHandshake      = "the program and the service have agreed on no TLS, which a credential needs"
	reasonTakenAway      = "the credential was taken away"
	reasonNoLeaf         = "no certificate could be made for a credential"
	reasonSealed         = "a credential cannot be opened"
	reasonRead           = "budget used up: too many of the user's connections are read for credentials"
	reasonTooMany        = "too many connections are open"
	reasonSockets        = "budget used up: the user has too many connections open"
	reasonHellos         = "budget used up: too many bytes of the user's requests wait for servers"
	reasonPorts          = "budget used up: the user has too many connections to this address"
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
	f.tell(name, "", "", r)
}

// tell reports a verdict about a request that is read, with the credential that was put into it.
func (f *flow) tell(name, credential, request string, r *refusal) {
	via := decisions.TLS
	switch {
	case credential != "":
		via = decisions.Credential(credential)
	case f.plain && f.read.Load() == nil:
		via = decisions.HTTP
	}
	f.guard.cfg.Network.Decided(decisions.Decision{
		User: f.who.User(), Container: f.who.ID(), Name: name, Via: via, Type: request, Port: f.port,
		Verdict: r.verdict, Reason: r.reason,
	})
}
