// Package decisions is the bounded log of what egress decided: who asked for what, and the verdict.
//
// The DNS filter and the guard add to it from their hot paths. One mutex guards everything, and no
// reader holds it for longer than a few microseconds: Recent copies small pieces at a time, and a
// follower has a buffer of its own that overflows rather than wait. There is no goroutine here.
//
// Repeats are one entry: a program that asks the same 10,000 times moves one entry to the end.
// Entries share one capacity, and when that is full, the user who has the most of them makes room
// with its own least recently seen one. So a single user may use all of it, and a user that keeps
// asking for new names drives out only its own entries.
package decisions

import "time"

// Via is what a decision was made about.
type Via string

const (
	// DNS is a question to the DNS filter.
	DNS Via = "dns"
	// TLS is a connection to the guard, decided by its SNI.
	TLS Via = "tls"
	// HTTP is a request to the guard, decided by its Host.
	HTTP Via = "http"
	// TCP is a relayed connection, decided by the name that its address was an answer for, or by
	// the address; or one to a port that is not open.
	TCP Via = "tcp"
	// UDP is a datagram to a port that is not open.
	UDP Via = "udp"
)

// Credential is the Via of a request that got the credential of a name.
func Credential(name string) Via { return Via("credential:" + name) }

// Verdict is the outcome of a decision.
type Verdict string

const (
	// Allowed means that it was answered or passed on.
	Allowed Verdict = "allowed"
	// Denied means that the policy forbids it, or that no container is known at its source.
	Denied Verdict = "denied"
	// Failed means that it is allowed but could not be answered or reached.
	Failed Verdict = "failed"
	// Limited means that there were too many at once.
	Limited Verdict = "limited"
	// Malformed means that no name could be read from it.
	Malformed Verdict = "malformed"
)

// Decision is one decision, or several that differ in nothing but their time.
type Decision struct {
	// Seq is the number of the latest of them: Add counts from 1, over all users.
	Seq uint64
	// Count is how many there are, First the time of the first, and Time that of the latest.
	Count       uint64
	First, Time time.Time
	// User and Container made the request. They are empty if no container is known at the source.
	User, Container string
	// Name is what was asked for, in lower case and without a trailing dot; or an address, where no
	// name was asked for. It is empty if neither could be read.
	Name string
	// Via, Port and Type say how: Port is 0 for DNS. Type is the type of record for DNS, and for a
	// request that was read its method, its path without query, and the answer's status: "GET /user
	// 200". It is empty for others.
	Via     Via
	Port    uint16
	Type    string
	Verdict Verdict
	// Reason is one of a few phrases or sentences. It is kept as given.
	Reason string
}

// key is what repeats have in common. A map holds keys of at most 128 bytes without an allocation
// for each.
type key struct {
	user, container, name, recordType, reason string
	via                                       Via
	verdict                                   Verdict
	port                                      uint16
}

func (d *Decision) key() key {
	return key{d.User, d.Container, d.Name, d.Type, d.Reason, d.Via, d.Verdict, d.Port}
}

// Kind is what decisions are counted by.
type Kind struct {
	Via     Via
	Verdict Verdict
}

func kinds() map[Kind]uint64 {
	counts := map[Kind]uint64{}
	for _, via := range []Via{DNS, TLS, HTTP, TCP, UDP} {
		for _, verdict := range []Verdict{Allowed, Denied, Failed, Limited, Malformed} {
			counts[Kind{via, verdict}] = 0
		}
	}
	return counts
}
