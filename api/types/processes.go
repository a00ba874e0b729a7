package types

import "time"

// StartProcess is the body of POST …/processes. What it has in common with Exec means the same.
type StartProcess struct {
	// Name is for people; more than 80 characters are cut, and a notice says so.
	Name            string   `json:"name,omitempty"`
	Command         string   `json:"command,omitempty"`
	Argv            []string `json:"argv,omitempty"`
	Login           bool     `json:"login,omitzero"`
	Permissions     []string `json:"permissions,omitempty"`
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	Restrictions
	Home    string            `json:"home,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	// KeepAlive starts it again whenever it ends by itself.
	KeepAlive bool `json:"keepAlive,omitzero"`
	// Ready says how to tell that it is ready for its work; nil for not at all.
	Ready *Ready `json:"ready,omitempty"`
	// Expose lists ports inside that programs of the host may reach, as far as the settings allow it.
	Expose []Expose `json:"expose,omitempty"`
}

// Ready is a check that is made inside, again and again: either a shell command line that ends with code 0, or a
// TCP port of the process's own loopback that takes a connection.
type Ready struct {
	Command string `json:"command,omitempty"`
	Port    int    `json:"port,omitempty"`
	// IntervalMs is the time between two checks, TimeoutMs that for one; 0 is 500 and 2000.
	IntervalMs int64 `json:"intervalMs,omitzero"`
	TimeoutMs  int64 `json:"timeoutMs,omitzero"`
}

// Readiness is a Ready with what was found last.
type Readiness struct {
	Ready
	OK bool `json:"ok"`
	// Since is when that became so; zero before the first check, and for one that does not run.
	Since time.Time `json:"since,omitzero"`
	// Message says why it is not ready, for people. It is the process's own word.
	Message string `json:"message,omitempty"`
}

// Expose is a TCP port of a process's own loopback that programs of the host may reach.
type Expose struct {
	Port int `json:"port"`
	// HostPort is that of the host's loopback which leads there; 0 is the first of those allowed that is free.
	HostPort int `json:"hostPort,omitzero"`
}

// Exposed is an Expose as it is now.
type Exposed struct {
	Port     int `json:"port"`
	HostPort int `json:"hostPort"`
	// Address is where to connect to, on the host, as long as the process is to run.
	Address string `json:"address"`
	// Fault says why nobody listens there, for people.
	Fault string `json:"fault,omitempty"`
}

// ProcessState says whether a process runs, or ought to.
type ProcessState string

// The states. What a process ought to be is never exited.
const (
	ProcessRunning ProcessState = "running"
	ProcessStopped ProcessState = "stopped" // by request
	ProcessExited  ProcessState = "exited"  // by itself
)

// Process is a durable process as it is now, without its environment.
type Process struct {
	ID     string `json:"id"`
	UserID string `json:"userId"`
	// SandboxID is the sandbox that it was started with.
	SandboxID string `json:"sandboxId"`
	Name      string `json:"name"`
	// Command is a shell command line; Argv a program with its arguments. One of them is set.
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	Login   bool     `json:"login,omitzero"`
	Cwd     string   `json:"cwd"`
	Home    string   `json:"home"`
	// Permissions are its grants. They and the next two are never nil in an answer.
	Permissions     []string `json:"permissions"`
	AllowedDomains  []string `json:"allowedDomains"`
	PackageManagers []string `json:"packageManagers"`
	// Restrictions are what it was not to have; lists without an entry are left out.
	Restrictions
	// Ready is nil when nobody asks.
	Ready *Readiness `json:"ready,omitempty"`
	// Expose is left out without an entry, and when the process has ended for good.
	Expose []Exposed `json:"expose,omitempty"`
	// PID is that of its first program on Docker's host, or nil when it does not run.
	PID       *int `json:"pid"`
	KeepAlive bool `json:"keepAlive"`
	// DesiredState is ProcessRunning or ProcessStopped.
	DesiredState ProcessState `json:"desiredState"`
	Status       ProcessState `json:"status"`
	// Reason says why it does not run, where ExitCode and Signal do not: text for a person.
	Reason string `json:"reason,omitempty"`
	// RestartCount is how often it was started again. BackoffMs is the delay before the last restart or the
	// next, in milliseconds; NextRestartAt is set while it waits for that.
	RestartCount  int       `json:"restartCount"`
	BackoffMs     int64     `json:"backoffMs"`
	NextRestartAt time.Time `json:"nextRestartAt,omitzero"`
	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	LastStartedAt time.Time `json:"lastStartedAt,omitzero"`
	LastExitedAt  time.Time `json:"lastExitedAt,omitzero"`
	// ExitCode and Signal, a name such as SIGKILL, are how it ended last. Both are nil if it never has, or if
	// nobody knows.
	ExitCode *int    `json:"exitCode"`
	Signal   *string `json:"signal"`
	// OOMKilled says that it had used up its memory.
	OOMKilled bool `json:"oomKilled"`
	// LostBytes is output that could not be written to the log, over all restarts.
	LostBytes uint64 `json:"lostBytes"`
	// LogPath is the newest file of its log, on the host.
	LogPath string `json:"logPath"`
}

// StartedProcess is the answer of POST …/processes.
type StartedProcess struct {
	Process
	// Notices say what was changed of the request; never nil in an answer.
	Notices []string `json:"notices"`
}

// ProcessList is the answer of GET …/processes and of POST …/processes/stop-all, by creation.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// StopProcess is the body of POST …/processes/{processId}/stop, which may be left out.
type StopProcess struct {
	// Signal is TERM, INT, HUP or KILL; empty for TERM.
	Signal string `json:"signal,omitempty"`
}

// ProcessLog is the end of a process's log.
type ProcessLog struct {
	// Data is text, or base64 when Encoding says so.
	Data     string   `json:"data"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Truncated says that the bytes asked for were not enough for the lines.
	Truncated bool `json:"truncated"`
	// Notice reports something that is missing, for a person.
	Notice string `json:"notice,omitempty"`
}

// ProcessLogEvent is a line of a log that is followed. It is one of data, a notice, the end and an error.
type ProcessLogEvent struct {
	Data     string   `json:"data,omitempty"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Notice reports something that is missing before what comes next, for a person.
	Notice string `json:"notice,omitempty"`
	// ProcessLogEnd is the last line: the process has ended for good, and all that it wrote was sent.
	*ProcessLogEnd
	// Error is the last line when the log cannot be followed any further.
	Error *Error `json:"error,omitempty"`
}

// ProcessLogEnd is how a process ended whose log was followed.
type ProcessLogEnd struct {
	End bool `json:"end"` // true
	// Status is empty when the process has been removed.
	Status ProcessState `json:"status,omitempty"`
	// ExitCode and Signal are as in Process.
	ExitCode *int    `json:"exitCode"`
	Signal   *string `json:"signal"`
}
