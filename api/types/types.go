// Package types defines the JSON of the API as Go types, for the server and the client. The
// contract is api/openapi.yaml; a test checks that these types agree with it.
package types

import "time"

// Registration is the body of PUT /v1/sandboxes/{id}.
type Registration struct {
	// UserID is the tenant; it matches [a-z0-9][a-z0-9_.-]{0,62}.
	UserID      string      `json:"userId"`
	Permissions Permissions `json:"permissions,omitzero"`
	// Mounts are additional directories of the host. A call sees them by grant.
	Mounts []Mount `json:"mounts,omitempty"`
	// SkillsDir is the host directory that calls see read-only as /shared/skills; empty for none.
	SkillsDir string `json:"skillsDir,omitempty"`
	// Persistent gives the sandbox a container of its own, for its life: one machine, in which an
	// exec with In set to InSandbox runs, with all that the sandbox holds. What such a command
	// leaves running goes on.
	Persistent bool `json:"persistent,omitzero"`
	// AllowedDomains and PackageManagers are what that container may reach, written as in Exec.
	// They need Persistent and Permissions.Network, and can be changed while it runs.
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	// Warm are the tags of an expected call, as in Exec.Permissions without @network. The call's
	// container is made in the background. Nil makes none; empty stands for a call without grants.
	Warm []string `json:"warm,omitzero"`
}

// Permissions are what a sandbox holds and a call may be granted. Paths are container paths, or
// host paths under a mount.
type Permissions struct {
	// WorkingDir is in the user's home. Default /home.
	WorkingDir string `json:"workingDir,omitempty"`
	// WriteDirs and ReadDirs are what @write: and @read: may name, including anything below them.
	WriteDirs []string `json:"writeDirs"`
	ReadDirs  []string `json:"readDirs"`
	// Network and Events allow the tags @network and @events.
	Network bool `json:"network"`
	Events  bool `json:"events"`
	// Processes are the names that @process: may have: of the user's processes, or "*" for all
	// that the sandbox itself starts.
	Processes []string `json:"processes,omitempty"`
	// Secrets are the names that @secret: may have, of credentials that need not be registered yet.
	Secrets []string `json:"secrets,omitempty"`
	// AppID makes the sandbox that of an app; empty for none.
	AppID string `json:"appId,omitempty"`
}

// Mount is a directory of the host at a path inside the container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

// Sandbox is a registered sandbox.
type Sandbox struct {
	ID          string      `json:"id"`
	UserID      string      `json:"userId"`
	Permissions Permissions `json:"permissions"`
	Mounts      []Mount     `json:"mounts"`
	SkillsDir   string      `json:"skillsDir,omitempty"`
	// Persistent, AllowedDomains and PackageManagers are as in Registration.
	Persistent      bool     `json:"persistent,omitzero"`
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	// Paused reports whether nothing in it runs until it is resumed.
	Paused    bool      `json:"paused,omitzero"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
}

// SandboxList is the answer of GET /v1/sandboxes.
type SandboxList struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// RemovedUser is the answer of DELETE /v1/users/{userId}: what was removed.
type RemovedUser struct {
	UserID     string `json:"userId"`
	Sandboxes  int    `json:"sandboxes"`
	Processes  int    `json:"processes"`
	Containers int    `json:"containers"`
	// Home reports whether the home was removed, with all else that the user had on the host.
	Home bool `json:"home"`
}

// Exec is the body of POST /v1/sandboxes/{id}/exec, and the first message of an attached exec.
type Exec struct {
	// Command is a shell command line; Argv is a program with its arguments. Exactly one of them is
	// set.
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	// Login makes the shell a login shell.
	Login bool `json:"login,omitzero"`
	// In is InCall, also if it is empty, or InSandbox.
	In In `json:"in,omitempty"`
	// Process is the id or the name of a process that the sandbox has started and that runs: the
	// command runs in its container, with what it has. Permissions and the like are empty then.
	Process string `json:"process,omitempty"`
	// Permissions are the call's grants: @network, @events, @workspace, @read:/path, @write:/path,
	// @process:NAME, @secret:NAME.
	Permissions []string `json:"permissions,omitempty"`
	// AllowedDomains are the names to reach: example.com, *.example.com for every name below it, or
	// * for all names. PackageManagers are presets of such names: node, python and so on. Both need
	// @network.
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	Restrictions
	// Home is where HOME and similar variables point: a directory that the call may write to.
	Home string `json:"home,omitempty"`
	// Cwd is relative to the working directory, or an absolute path in it, in /tmp or in a further
	// mount.
	Cwd string `json:"cwd,omitempty"`
	// Env and Secrets are added to the environment; secrets are never logged.
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	// TimeoutMs is in milliseconds; absent for the service's default.
	TimeoutMs *int64 `json:"timeoutMs,omitempty"`
	// Stdin is the whole stdin: text, or base64 when StdinEncoding says so. It is sent unless it is
	// empty; to give an attached exec an empty one, set StdinEncoding to Base64. An attached exec
	// that sends neither sends its stdin as messages.
	Stdin         string   `json:"stdin,omitempty"`
	StdinEncoding Encoding `json:"stdinEncoding,omitempty"`
	// TTY asks for a pseudo-terminal as stdin, stdout and stderr; all output then comes as stdout.
	// Only an attached exec may have one.
	TTY *Terminal `json:"tty,omitempty"`
	// DetachOnDisconnect lets the command go on when the caller's connection is lost. Only a
	// streamed or attached exec may set it.
	DetachOnDisconnect bool `json:"detachOnDisconnect,omitzero"`
	// OnlyIfRunning refuses the call if the sandbox is paused. Without it, the call resumes the
	// sandbox.
	OnlyIfRunning bool `json:"onlyIfRunning,omitzero"`
}

// In says in which container a call runs.
type In string

// The containers. InCall is the default: one for the call's grants. InSandbox is that of a
// persistent sandbox, which has all that the sandbox holds: the call asks for nothing of its own.
const (
	InCall    In = "call"
	InSandbox In = "sandbox"
	// InProcess is that of a process, for a call with Exec.Process; it is said in answers alone.
	InProcess In = "process"
)

// Terminal is a terminal's size in characters, from 1 to 10000; by default 24 rows of 80.
type Terminal struct {
	Rows *int `json:"rows,omitempty"`
	Cols *int `json:"cols,omitempty"`
}

// Restrictions are what a call gives up. They override its grants and the names that it asks for.
// Each list has at most 64 entries.
type Restrictions struct {
	// DenyRead are paths hidden from the call, and DenyWrite paths that it may not write: container
	// paths, or host paths under a mount, with everything below them.
	DenyRead  []string `json:"denyRead,omitempty"`
	DenyWrite []string `json:"denyWrite,omitempty"`
	// DeniedDomains are names that the call may not reach, written as in AllowedDomains. They
	// cannot be combined with *.
	DeniedDomains []string `json:"deniedDomains,omitempty"`
}

// Encoding says how bytes are represented in a JSON string.
type Encoding string

// The encodings. Text is the default.
const (
	Text   Encoding = ""
	Base64 Encoding = "base64"
)

// Result is how a command ended.
type Result struct {
	// ExitCode is null when a signal ended the command.
	ExitCode *int `json:"exitCode"`
	// Signal is a name such as SIGKILL, or null.
	Signal *string `json:"signal"`
	// Failed reports whether the command did not exit normally with 0.
	Failed bool `json:"failed"`
	// Cwd is where it ran, as a container path.
	Cwd string `json:"cwd"`
	// TimedOut reports whether the command ran into timeoutMs.
	TimedOut bool `json:"timedOut"`
	// Truncated reports whether output beyond the limit was dropped.
	Truncated bool `json:"truncated"`
	// DurationMs is the time from the call to the command's end, in milliseconds.
	DurationMs float64 `json:"durationMs"`
	// Cold reports whether a container had to be made first.
	Cold bool `json:"cold"`
	// Egress is what the command tried to reach and could not; never nil in an answer. Calls that
	// run in one container at the same time also get each other's entries.
	Egress []Refusal `json:"egress"`
	// EgressMore is the number of further names; 1000 means at least that many.
	EgressMore int `json:"egressMore,omitzero"`
	// Hints are what else is to be said about how it went; never nil in an answer.
	Hints []Hint `json:"hints"`
}

// HintKind says what a Hint is about.
type HintKind string

// The kinds of hints.
const (
	HintNoNetwork      HintKind = "noNetwork"      // it failed, tried to reach something, and had no network
	HintReadOnly       HintKind = "readOnly"       // it failed and tried to write where it may not
	HintLeftovers      HintKind = "leftovers"      // processes that it left running were ended
	HintOutOfMemory    HintKind = "outOfMemory"    // its container's memory ran out
	HintOutOfProcesses HintKind = "outOfProcesses" // its container could start no more processes
	HintNoSpace        HintKind = "noSpace"        // a place was full
	HintRestarted      HintKind = "restarted"      // its persistent sandbox was started again before it
	HintOwnLocalhost   HintKind = "ownLocalhost"   // it failed and found no server at localhost, and one runs elsewhere
	HintOpenElsewhere  HintKind = "openElsewhere"  // a database changed that a process has open in another kernel
)

// Hint is something that a result says beside the output: what happened, and what to do about it.
type Hint struct {
	Kind HintKind `json:"kind"`
	// Message is for people and agents, in the API's terms.
	Message string `json:"message"`
	// Commands belongs to leftovers: command lines of processes that were ended. Count is how many
	// were ended.
	Commands []string `json:"commands,omitempty"`
	Count    int      `json:"count,omitzero"`
	// Path belongs to readOnly and noSpace: where, if that is known. Of openElsewhere it is the file.
	Path string `json:"path,omitempty"`
	// Process belongs to openElsewhere: the process, by name or id, if the sandbox has started it.
	Process string `json:"process,omitempty"`
	// Limit is the setting of the service that bounds what ran out, and Value what it is.
	Limit string `json:"limit,omitempty"`
	Value string `json:"value,omitempty"`
	// Reason belongs to restarted: why the sandbox was started again.
	Reason string `json:"reason,omitempty"`
	// In is InSandbox for a command inside its persistent sandbox, InProcess for one in a process's
	// container, and empty otherwise.
	In In `json:"in,omitempty"`
}

// Output is the answer of a buffered exec.
type Output struct {
	Stdout         string   `json:"stdout"`
	StdoutEncoding Encoding `json:"stdoutEncoding,omitempty"`
	Stderr         string   `json:"stderr"`
	StderrEncoding Encoding `json:"stderrEncoding,omitempty"`
	// StdoutCut and StderrCut are nil if all of the output is there.
	StdoutCut *Cut `json:"stdoutCut,omitempty"`
	StderrCut *Cut `json:"stderrCut,omitempty"`
	Result
}

// Cut says which part of an output is left out.
type Cut struct {
	// At is how many bytes of the output are there before it.
	At int64 `json:"at"`
	// Bytes is how many are left out.
	Bytes int64 `json:"bytes"`
}

// EventType is the kind of an Event.
type EventType string

// The events: one start; any number of stdout, stderr, and egress for names that the command could
// not reach; one exit or error at the end. An attached exec gets output as binary messages instead,
// and a stdin event says how much stdin was taken. A keepalive is sent after 15 seconds without
// another event.
const (
	EventStart     EventType = "start"
	EventStdout    EventType = "stdout"
	EventStderr    EventType = "stderr"
	EventLost      EventType = "lost"
	EventStdin     EventType = "stdin"
	EventEgress    EventType = "egress"
	EventKeepAlive EventType = "keepalive"
	EventExit      EventType = "exit"
	EventError     EventType = "error"
)

// Event is one line of a streamed exec, or a text message of an attached one.
type Event struct {
	Type EventType `json:"type"`
	// ExecID belongs to start, of a streamed exec and of one with DetachOnDisconnect.
	ExecID string `json:"execId,omitempty"`
	// Lost belongs to lost: the number of output bytes that are no longer kept at this place.
	Lost int64 `json:"lost,omitzero"`
	// Data and Encoding belong to stdout and stderr.
	Data     string   `json:"data,omitempty"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Bytes belongs to stdin: the number of bytes taken since the last such event.
	Bytes int `json:"bytes,omitzero"`
	// Refusal belongs to egress. Each one is sent once, with its count at that time.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Result belongs to exit.
	Result *Result `json:"result,omitempty"`
	// Error belongs to error.
	Error *Error `json:"error,omitempty"`
}

// Input is a text message that the client of an attached exec sends after the first one. Stdin is
// sent in binary messages.
type Input struct {
	Type InputType `json:"type"`
	// Signal belongs to signal: HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP, TSTP or WINCH.
	Signal string `json:"signal,omitempty"`
	// Rows and Cols belong to resize, from 1 to 10000.
	Rows int `json:"rows,omitzero"`
	Cols int `json:"cols,omitzero"`
}

// InputType is the kind of an input.
type InputType string

// The inputs: the end of stdin, a signal for the command's process group, and a terminal's new
// size.
const (
	InputEOF    InputType = "eof"
	InputSignal InputType = "signal"
	InputResize InputType = "resize"
)

// StdinWindow is how many bytes of stdin an attached exec may send ahead of the bytes that stdin
// events have acknowledged.
const StdinWindow = 1 << 20

// The first byte of a binary message of an attached exec, and of a frame of a streamed one.
const (
	ChannelStdin  byte = 0
	ChannelStdout byte = 1
	ChannelStderr byte = 2
	ChannelEvent  byte = 3 // only in frames
)

// Frames is the media type of a streamed exec whose events are frames: a header of FrameHeader
// bytes (the channel, three zeros and the length in big-endian order), then that many bytes of
// output or an Event. Docker's streams use the same frames.
const (
	Frames      = "application/vnd.daycare.exec-frames"
	FrameHeader = 8
)

// Container is a warm container.
type Container struct {
	Name        string    `json:"name"`
	ID          string    `json:"id"`
	UserID      string    `json:"userId"`
	Fingerprint string    `json:"fingerprint"`
	Runtime     string    `json:"runtime"`
	State       string    `json:"state"`
	Commands    int       `json:"commands"`
	CreatedAt   time.Time `json:"createdAt"`
	LastUsedAt  time.Time `json:"lastUsedAt"`
	// Node is the host on which it runs; empty for a service that is the only one.
	Node string `json:"node,omitempty"`
	// Usage is what it consumes, if the caller asked for that and it is known.
	Usage *ContainerUsage `json:"usage,omitempty"`
}

// PooledContainer is a container that waits for a future user, or is being made for one.
type PooledContainer struct {
	Name      string    `json:"name"`
	ID        string    `json:"id"`
	Runtime   string    `json:"runtime"`
	State     string    `json:"state"`
	CreatedAt time.Time `json:"createdAt"`
	// Node and Usage are as in Container.
	Node  string          `json:"node,omitempty"`
	Usage *ContainerUsage `json:"usage,omitempty"`
}

// ContainerUsage is what a container consumes.
type ContainerUsage struct {
	At time.Time `json:"at"`
	// CPUMs is the CPU time that it has used since it started; MemoryBytes is its memory, including
	// the kernel's cache.
	CPUMs       float64 `json:"cpuMs"`
	MemoryBytes int64   `json:"memoryBytes"`
}

// ContainerList is the answer of GET /v1/containers.
type ContainerList struct {
	Containers []Container `json:"containers"`
	// Pooled are the containers that have no user yet; nil for a caller who acts for some users
	// only.
	Pooled []PooledContainer `json:"pooled,omitzero"`
	// Unanswered are the hosts of the cluster that did not answer, so their containers are missing.
	Unanswered []string `json:"unanswered,omitempty"`
}

// Node is a host of a cluster.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address"` // at which the other hosts call it
	Version string `json:"version"`
	// Draining reports whether it takes no new users.
	Draining bool `json:"draining"`
	// Users is the number of users that it holds.
	Users int `json:"users"`
	// Lost reports whether it no longer has a lease and has not confirmed that nothing of it runs.
	Lost bool `json:"lost,omitempty"`
}

// NodeList is the answer of GET /v1/nodes.
type NodeList struct {
	Nodes []Node `json:"nodes"`
}

// NodeChange is the body of PUT /v1/nodes/{node}.
type NodeChange struct {
	Draining *bool `json:"draining"` // must be set
}

// Health is the answer of GET /v1/health.
type Health struct {
	// Status is "ok", or "degraded" when commands cannot run now; Problem then says why.
	Status       string `json:"status"`
	Version      string `json:"version"`
	Engine       string `json:"engine,omitempty"`
	Runtime      string `json:"runtime,omitempty"`
	Image        string `json:"image,omitempty"`
	ImageVersion string `json:"imageVersion,omitempty"`
	Problem      string `json:"problem,omitempty"`
	// UsersDir is the host's directory of users' homes: <UsersDir>/<userId>/home.
	UsersDir string `json:"usersDir"`
	// MaxTimeoutMs is the largest TimeoutMs that an exec may set.
	MaxTimeoutMs int64 `json:"maxTimeoutMs"`
	// Warnings report what is lost or damaged even though commands run.
	Warnings []string `json:"warnings,omitempty"`
	Settings Settings `json:"settings"`
}

// Settings says which of the service's settings are in force.
type Settings struct {
	// LoadedAt is when they were read.
	LoadedAt time.Time `json:"loadedAt"`
	// Pending are the keys of settings that have changed since then and need a restart; never nil
	// in an answer.
	Pending []string `json:"pending"`
}
