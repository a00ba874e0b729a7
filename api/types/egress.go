package types

import "time"

// Verdict is what became of an attempt to reach a name.
type Verdict string

// The verdicts.
const (
	VerdictAllowed   Verdict = "allowed"
	VerdictDenied    Verdict = "denied"    // the call may not, or nobody is known at the source
	VerdictFailed    Verdict = "failed"    // it may, but there was no answer or no connection
	VerdictLimited   Verdict = "limited"   // too much at once
	VerdictMalformed Verdict = "malformed" // no name could be read
)

// Via is where the verdict was given.
type Via string

// The places: a question to the DNS filter, the SNI of a TLS connection, the Host of an HTTP request, and a
// connection to a further port.
const (
	ViaDNS  Via = "dns"
	ViaTLS  Via = "tls"
	ViaHTTP Via = "http"
	ViaTCP  Via = "tcp"
)

// ReasonNotAllowed is the reason of a denial that naming the name in allowedDomains would have
// prevented. Other reasons are for people.
const ReasonNotAllowed = "the name is not allowed for this call"

// Refusal is something that a command wanted to reach and did not.
type Refusal struct {
	// Name is empty if none could be read.
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Via     Via     `json:"via"`
	Reason  string  `json:"reason"`
	Count   uint64  `json:"count"`
}

// Decision is what egress decided about one attempt, or several that differ in nothing but their time.
type Decision struct {
	// Seq is the number of the latest of them, over all users; it begins again with the service.
	Seq uint64 `json:"seq"`
	// Time is that of the latest, First that of the first, and Count how many there are.
	Time  time.Time `json:"time"`
	First time.Time `json:"first"`
	Count uint64    `json:"count"`
	// UserID and Container are who asked. They are empty if nobody is known at the source.
	UserID    string `json:"userId"`
	Container string `json:"container"`
	// Name is in lower case and without a trailing dot; empty if none could be read.
	Name string `json:"name"`
	Via  Via    `json:"via"`
	// Port belongs to tls and http, Type to dns: the type of record, such as AAAA, if it has a name.
	Port    uint16  `json:"port,omitzero"`
	Type    string  `json:"type,omitempty"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	// Node is the host that has decided, whose Seq it is; empty for a service that is the only one.
	Node string `json:"node,omitempty"`
}

// DecisionList is the answer of GET /v1/egress/decisions, oldest first.
type DecisionList struct {
	Decisions []Decision `json:"decisions"`
	// Unanswered are the hosts of the cluster whose decisions are not in it, because they did not answer.
	Unanswered []string `json:"unanswered,omitempty"`
}

// DecisionEvent is a line of GET /v1/egress/decisions?follow=true. One of the two is set.
type DecisionEvent struct {
	*Decision
	// Lost is how many decisions were left out here, because the caller was too slow.
	Lost uint64 `json:"lost,omitzero"`
}
