package types

import "time"

// StartProcess is the body of POST …/processes. Fields that it shares with Exec mean the same.
type StartProcess struct {
	// Name is for people; more than 80 characters are cut, and a notice says so.
	Name            string   `json:"name,omitempty"`
	Command         string   `json:"command,omitempty"`
	Argv            []string `json:"argv,omitempty"`
	Login           bool     `json:"login,omitzero"`
	In              In       `json:"in,omitempty"`
	Permissions     []string `json:"permissions,omitempty"`
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	Restrictions
	Home    string            `json:"home,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	// KeepAlive restarts the process whenever it ends by itself.
	KeepAlive bool `json:"keepAlive,omitzero"`
	// Ready says how to check that the process is ready for its work; nil for no check.
	Ready *Ready `json:"ready,omitempty"`
	// Expose lists ports inside that programs on the host may reach, as far as the settings allow.
	Expose []Expose `json:"expose,omitempty"`
}

// Ready is a check that is repeated inside the container: either a shell command line that exits
// with code 0, or a TCP port of the process's own loopback that accepts a connection.
type Ready struct {
	Command string `json:"command,omitempty"`
	Port    int    `json:"port,omitzero"`
	// IntervalMs is the time between two checks, TimeoutMs the limit of one check; 0 means 500 and
	// 2000.
	IntervalMs int64 `json:"intervalMs,omitzero"`
	TimeoutMs  int64 `json:"timeoutMs,omitzero"`
}

// Readiness is a Ready with its latest result.
type Readiness struct {
	Ready
	OK bool `json:"ok"`
	// Since is when OK last changed; zero before the first check, and for a process that does not
	// run.
	Since time.Time `json:"since,omitzero"`
	// Message says why it is not ready, for people. The text comes from the process itself.
	Message string `json:"message,omitempty"`
}

// Expose is a TCP port of a process's own loopback that programs on the host may reach.
type Expose struct {
	Port int `json:"port"`
	// HostPort is the port of the host's loopback that leads to it; 0 means the first allowed port
	// that is free.
	HostPort int `json:"hostPort,omitzero"`
}

// Exposed is the current state of an Expose.
type Exposed struct {
	Port     int `json:"port"`
	HostPort int `json:"hostPort"`
	// Address is where to connect on the host, for as long as the process is to run.
	Address string `json:"address"`
	// Fault says why nothing listens there, for people.
	Fault string `json:"fault,omitempty"`
}

// ProcessState is the actual or desired state of a process.
type ProcessState string

// The states. A desired state is running or stopped.
const (
	ProcessRunning ProcessState = "running"
	ProcessStopped ProcessState = "stopped" // by request
	ProcessExited  ProcessState = "exited"  // by itself
	ProcessPaused  ProcessState = "paused"  // running, but paused with its sandbox
)

// Process is a durable process as it is now, without its environment.
type Process struct {
	ID     string `json:"id"`
	UserID string `json:"userId"`
	// SandboxID is the sandbox with which it was started.
	SandboxID string `json:"sandboxId"`
	Name      string `json:"name"`
	// Command is a shell command line; Argv a program with its arguments. One of them is set.
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	Login   bool     `json:"login,omitzero"`
	Cwd     string   `json:"cwd"`
	Home    string   `json:"home"`
	// In is InSandbox for one that runs inside its sandbox, and empty otherwise.
	In In `json:"in,omitempty"`
	// Permissions are its grants. This list and the next two are never nil in an answer.
	Permissions     []string `json:"permissions"`
	AllowedDomains  []string `json:"allowedDomains"`
	PackageManagers []string `json:"packageManagers"`
	// Restrictions are what it gave up; empty lists are left out.
	Restrictions
	// Ready is nil when the process has no readiness check.
	Ready *Readiness `json:"ready,omitempty"`
	// Expose is left out when it is empty and when the process has ended for good.
	Expose []Exposed `json:"expose,omitempty"`
	// PID is the pid of its first program on Docker's host, or nil when it does not run.
	PID       *int `json:"pid"`
	KeepAlive bool `json:"keepAlive"`
	// DesiredState is ProcessRunning or ProcessStopped.
	DesiredState ProcessState `json:"desiredState"`
	Status       ProcessState `json:"status"`
	// Reason says why it does not run when ExitCode and Signal do not: text for a person.
	// ExitReason is what it was of the last exit, also once the process runs again.
	Reason     string `json:"reason,omitempty"`
	ExitReason string `json:"exitReason,omitempty"`
	// Notice says what its last start had to do that changes what it finds: text for a person.
	Notice string `json:"notice,omitempty"`
	// RestartCount is the number of restarts. BackoffMs is the delay before the last or the next
	// restart, in milliseconds; NextRestartAt is set while the process waits for its next restart.
	RestartCount  int       `json:"restartCount"`
	BackoffMs     int64     `json:"backoffMs"`
	NextRestartAt time.Time `json:"nextRestartAt,omitzero"`
	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	LastStartedAt time.Time `json:"lastStartedAt,omitzero"`
	LastExitedAt  time.Time `json:"lastExitedAt,omitzero"`
	// ExitCode and Signal, a name such as SIGKILL, say how it ended last. Both are nil if it has
	// never ended, or if nobody knows.
	ExitCode *int    `json:"exitCode"`
	Signal   *string `json:"signal"`
	// OOMKilled reports whether it was killed because it had used up its memory.
	OOMKilled bool `json:"oomKilled"`
	// LostBytes counts output that could not be written to the log, over all restarts.
	LostBytes uint64 `json:"lostBytes"`
	// LogPath is the newest file of its log, on the host.
	LogPath string `json:"logPath"`
}

// Runs reports whether a process runs, paused or not.
func (p Process) Runs() bool { return p.Status == ProcessRunning || p.Status == ProcessPaused }

// StartedProcess is the answer of POST …/processes.
type StartedProcess struct {
	Process
	// Notices say what was changed in the request; never nil in an answer.
	Notices []string `json:"notices"`
}

// WaitedProcess is the answer of GET …/processes/{processId}/wait.
type WaitedProcess struct {
	Process
	// TimedOut reports whether the time was over first.
	TimedOut bool `json:"timedOut"`
}

// ProcessList is the answer of GET …/processes and of POST …/processes/stop-all, by creation.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// AllProcesses is the answer of GET /v1/processes. Of Command and Argv it has the beginning.
type AllProcesses struct {
	ProcessList
	// Unanswered are the hosts of the cluster that did not answer, so their processes are missing.
	Unanswered []string `json:"unanswered,omitempty"`
}

// StopProcess is the body of POST …/processes/{processId}/stop; the body is optional.
type StopProcess struct {
	// Signal is TERM, INT, HUP or KILL; empty for TERM.
	Signal string `json:"signal,omitempty"`
}

// ProcessLog is the end of a process's log.
type ProcessLog struct {
	// Data is text, or base64 when Encoding says so.
	Data     string   `json:"data"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Truncated reports whether the byte limit cut off some of the lines asked for.
	Truncated bool `json:"truncated"`
	// Notice says, for a person, that something is missing.
	Notice string `json:"notice,omitempty"`
}

// ProcessLogEvent is a line of a followed log: data, a notice, the end or an error.
type ProcessLogEvent struct {
	Data     string   `json:"data,omitempty"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Notice says, for a person, that something is missing before the next data.
	Notice string `json:"notice,omitempty"`
	// ProcessLogEnd is the last line: the process has ended for good, and all its output was sent.
	*ProcessLogEnd
	// Error is the last line when the log cannot be followed any further.
	Error *Error `json:"error,omitempty"`
}

// ProcessLogEnd says how a process ended while its log was followed.
type ProcessLogEnd struct {
	End bool `json:"end"` // true
	// Status is empty when the process has been removed.
	Status ProcessState `json:"status,omitempty"`
	// ExitCode and Signal are as in Process.
	ExitCode *int    `json:"exitCode"`
	Signal   *string `json:"signal"`
}
