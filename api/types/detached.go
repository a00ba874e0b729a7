package types

import "time"

// DetachedExec is an exec with detachOnDisconnect, which a caller may come back to.
type DetachedExec struct {
	ExecID string `json:"execId"`
	// Command is for people: the command line, or a program with its arguments; the begin of a long one.
	Command string `json:"command"`
	// TTY says that it has a terminal.
	TTY bool `json:"tty"`
	// Attached says that a caller is connected.
	Attached bool `json:"attached"`
	// OutputBytes is how many bytes it has printed, stdout and stderr together.
	OutputBytes int64     `json:"outputBytes"`
	CreatedAt   time.Time `json:"createdAt"`
	// EndedAt is absent while it runs; then one of Result and Error says how it ended.
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
	// Signal is one of those of Input.
	Signal string `json:"signal"`
}
