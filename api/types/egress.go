package types

import "time"

// Verdict is what became of an attempt to reach a name.
type Verdict string

// The verdicts.
const (
	VerdictAllowed   Verdict = "allowed"
	VerdictDenied    Verdict = "denied"    // the call may not reach it, or the source is unknown
	VerdictFailed    Verdict = "failed"    // allowed, but there was no answer or no connection
	VerdictLimited   Verdict = "limited"   // too much at once
	VerdictMalformed Verdict = "malformed" // no name could be read
)

// Via is the place where the verdict was given.
type Via string

// The places: a query to the DNS filter, the SNI of a TLS connection, the Host of an HTTP request,
// and a connection to an extra port; or a connection or datagram to a port that is not open.
const (
	ViaDNS  Via = "dns"
	ViaTLS  Via = "tls"
	ViaHTTP Via = "http"
	ViaTCP  Via = "tcp"
	ViaUDP  Via = "udp"
)

// ReasonNotAllowed is the reason of a denial that listing the name in allowedDomains would have
// prevented. Other reasons are for people.
const ReasonNotAllowed = "the name is not allowed for this call"

// Refusal is something that a command tried to reach and could not.
type Refusal struct {
	// Name is empty if no name could be read. It is an address where the command asked for no name.
	Name string `json:"name"`
	// Port is absent if the command gave a name with what was refused.
	Port    uint16  `json:"port,omitzero"`
	Verdict Verdict `json:"verdict"`
	Via     Via     `json:"via"`
	Reason  string  `json:"reason"`
	Count   uint64  `json:"count"`
}

// Decision is what egress decided about one attempt, or about several that differ only in their
// time.
type Decision struct {
	// Seq numbers the latest attempt, over all users; it starts again when the service restarts.
	Seq uint64 `json:"seq"`
	// Time is when the latest attempt was made and First the first one; Count is the number of
	// attempts.
	Time  time.Time `json:"time"`
	First time.Time `json:"first"`
	Count uint64    `json:"count"`
	// UserID and Container say who asked. They are empty if the source is unknown.
	UserID    string `json:"userId"`
	Container string `json:"container"`
	// Name is in lower case and without a trailing dot; empty if no name could be read.
	Name string `json:"name"`
	Via  Via    `json:"via"`
	// Port belongs to tls, http, tcp and udp; Type belongs to dns: the record type, such as AAAA,
	// if it has a name.
	Port    uint16  `json:"port,omitzero"`
	Type    string  `json:"type,omitempty"`
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"`
	// Node is the host that decided; Seq is that host's. It is empty for a service that is the only
	// one.
	Node string `json:"node,omitempty"`
}

// DecisionList is the answer of GET /v1/egress/decisions, oldest first.
type DecisionList struct {
	Decisions []Decision `json:"decisions"`
	// Unanswered are the hosts of the cluster that did not answer, so their decisions are missing.
	Unanswered []string `json:"unanswered,omitempty"`
}

// DecisionEvent is a line of GET /v1/egress/decisions?follow=true. One of the two is set.
type DecisionEvent struct {
	*Decision
	// Lost is how many decisions were left out at this point because the caller was too slow.
	Lost uint64 `json:"lost,omitzero"`
}
