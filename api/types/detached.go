package types

import "time"

// DetachedExec is an exec with detachOnDisconnect, to which a caller can reattach.
type DetachedExec struct {
	ExecID string `json:"execId"`
	// Command is for people: the command line, or a program with its arguments; a long one is cut.
	Command string `json:"command"`
	// TTY reports whether it has a terminal.
	TTY bool `json:"tty"`
	// Attached reports whether a caller is connected.
	Attached bool `json:"attached"`
	// OutputBytes is how many bytes it has printed, stdout and stderr together.
	OutputBytes int64     `json:"outputBytes"`
	CreatedAt   time.Time `json:"createdAt"`
	// EndedAt is absent while it runs; after that, either Result or Error says how it ended.
	EndedAt *time.Time `json:"endedAt,omitempty"`
	Result  *Result    `json:"result,omitempty"`
	Error   *Error     `json:"error,omitempty"`
}

// DetachedExecList is the answer of GET /v1/sandboxes/{id}/execs, oldest first.
type DetachedExecList struct {
	Execs []DetachedExec `json:"execs"`
}

// ExecSignal is the body of POST …/execs/{execId}/signal.
type ExecSignal struct {
	// Signal takes the same values as Input.Signal.
	Signal string `json:"signal"`
}
