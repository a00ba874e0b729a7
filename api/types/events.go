package types

import "time"

// ServiceEvent is an event of GET /v1/events. Only the field for its kind is set.
type ServiceEvent struct {
	// ID is what to resume after. It identifies the service that sent it, and grows.
	ID     string      `json:"id"`
	Time   time.Time   `json:"time"`
	Kind   ServiceKind `json:"kind"`
	UserID string      `json:"userId,omitempty"`

	Call      *CallEvent      `json:"call,omitempty"`
	Container *ContainerEvent `json:"container,omitempty"`
	Process   *ProcessEvent   `json:"process,omitempty"`
	Decision  *Decision       `json:"decision,omitempty"`
	Node      *NodeEvent      `json:"node,omitempty"`
	Seat      *SeatEvent      `json:"seat,omitempty"`
}

// ServiceKind is what an event is about.
type ServiceKind string

// The kinds. A stream begins with open. A gap means that events at this point are no longer kept,
// or that the service was restarted: fetch the current state again.
const (
	ServiceOpen      ServiceKind = "open"
	ServiceGap       ServiceKind = "gap"
	ServiceCall      ServiceKind = "call"
	ServiceContainer ServiceKind = "container"
	ServiceProcess   ServiceKind = "process"
	ServiceDecision  ServiceKind = "decision"
	ServiceNode      ServiceKind = "node"
	ServiceSeat      ServiceKind = "seat"
)

// CallEvent is one step of an exec.
type CallEvent struct {
	// ID is the same in all events of one exec of this service.
	ID uint64 `json:"id"`
	// Phase is began, running or ended.
	Phase string `json:"phase"`
	// SandboxID, Command, Grants and Network are what the caller wrote; long values are cut.
	SandboxID string `json:"sandboxId,omitempty"`
	Command   string `json:"command,omitempty"`
	Grants    string `json:"grants,omitempty"`
	Network   string `json:"network,omitempty"`
	Container string `json:"container,omitempty"`
	// Outcome and the fields after it belong to ended. Way is warm, frozen, pooled or cold if it
	// got a container. StartMs is the time until its command had been handed over, TotalMs the time
	// of the whole call. Reason is the limit that it used up, for people.
	Outcome  string  `json:"outcome,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Way      string  `json:"way,omitempty"`
	ExitCode *int    `json:"exitCode,omitempty"`
	Signal   *string `json:"signal,omitempty"`
	StartMs  float64 `json:"startMs,omitzero"`
	TotalMs  float64 `json:"totalMs,omitzero"`
}

// ContainerEvent is a change of a container's state.
type ContainerEvent struct {
	Name        string `json:"name"`
	Fingerprint string `json:"fingerprint"`
	Runtime     string `json:"runtime"`
	// State is starting, idle, frozen, pooled or removed. CallEvent says whether commands run in
	// it.
	State     string    `json:"state"`
	CreatedAt time.Time `json:"createdAt"`
}

// ProcessEvent is a change of a durable process.
type ProcessEvent struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandboxId"`
	Name      string `json:"name"`
	// Status is a ProcessState, or removed.
	Status string `json:"status"`
	// Reason says why it does not run, if its exit does not say, or what its start had to do: text
	// for a person.
	Reason string `json:"reason,omitempty"`
}

// NodeEvent is a change of a host of the cluster.
type NodeEvent struct {
	Name string `json:"name"`
	// State is up, draining, lost, fencing, away or, for the host that answers the request, fenced.
	State string `json:"state"`
}

// SeatEvent reports that a host now holds a user. From is the lost host from which it took the user
// over.
type SeatEvent struct {
	Node string `json:"node"`
	From string `json:"from,omitempty"`
}
