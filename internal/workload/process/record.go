package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/daycare-run/sandbox/internal/plan"
)

// State says whether a process runs, or ought to run.
type State string

// The states of a process. The first two are also desired states.
const (
	Running State = "running"
	Stopped State = "stopped" // by request
	Exited  State = "exited"  // by itself; with KeepAlive it comes back at NextRestartAt
	Paused  State = "paused"  // running, but its sandbox is paused; see Record.State
)

// Intent is a process that a caller asks for. A field without a comment is not checked here: it is
// kept as it is, also for the Runner, and the caller must not change what it refers to.
type Intent struct {
	UserID    string `json:"userId"` // must be set
	SandboxID string `json:"sandboxId,omitempty"`
	// InSandbox says that it runs inside its sandbox, which is persistent, with all that this
	// holds. The fields of its Confinement are empty then.
	InSandbox bool `json:"inSandbox,omitempty"`
	// Name is for people; one longer than maxName characters is cut.
	Name string `json:"name"`
	// Command is a shell command line, Argv a program with its arguments: one of them must be set.
	Command         string            `json:"command,omitempty"`
	Argv            []string          `json:"argv,omitempty"`
	Login           bool              `json:"login,omitempty"`
	Cwd             string            `json:"cwd"`
	Home            string            `json:"home"`
	Env             map[string]string `json:"env,omitempty"`
	Grants          []string          `json:"grants"`
	AllowedDomains  []string          `json:"allowedDomains,omitempty"`
	PackageManagers []string          `json:"packageManagers,omitempty"`
	plan.Restrictions
	Egress    Egress `json:"egress"`
	KeepAlive bool   `json:"keepAlive"`
	// Ready is nil if nobody will ask for readiness. Unset fields get the defaults.
	Ready *Ready `json:"ready,omitempty"`
	// Expose lists ports in the container that programs of the host may reach.
	Expose []Port `json:"expose,omitempty"`
}

// Record is all that is known of a process. It is a value: whoever gets one must not change what
// its maps, slices and pointers refer to. Times are UTC; a zero time has not come yet.
type Record struct {
	ID string `json:"id"`
	Intent
	// Token is the name of the token by which it was started; empty for a caller at the socket.
	Token string `json:"token,omitempty"`
	// HasSecrets says that the process was given secrets and needs them for every start.
	HasSecrets bool `json:"hasSecrets,omitempty"`
	// Readiness is reported for a running process, and not kept.
	Readiness Readiness `json:"-"`
	// Paused says that a running process is paused with its sandbox. It is not kept: the sandbox's
	// record has it.
	Paused  bool   `json:"-"`
	LogPath string `json:"logPath,omitempty"`

	DesiredState State `json:"desiredState"`
	Status       State `json:"status"`
	// Reason says why the process does not run, if its exit does not say: text for a person.
	// ExitReason is what it was of the last exit, also once the process runs again.
	Reason     string `json:"reason,omitempty"`
	ExitReason string `json:"exitReason,omitempty"`
	// Notice says what its last start had to do that changes what the process finds: text for a
	// person.
	Notice string `json:"notice,omitempty"`

	// Instance and BootID identify the current run of the process; both are empty while it does not
	// run.
	Instance Identity `json:"instance,omitzero"`
	BootID   string   `json:"bootId,omitempty"`
	// Held is what the container of this run has (plan.Plan.Held, or plan.Call.Held
	// inside its sandbox), for whoever is to run beside it.
	// It is empty for a run that an earlier version has started, whose first program takes no
	// requests.
	Held string `json:"held,omitempty"`
	// PID is that of its first program on Docker's host, for information: nothing acts on it. 0 is
	// none.
	PID int `json:"pid,omitempty"`

	// RestartCount is how often it was started again, including failed attempts.
	RestartCount int `json:"restartCount"`
	// BackoffMs is the delay before the last restart or the next one; NextRestartAt is set while it
	// waits for that.
	BackoffMs     int64     `json:"backoffMs"`
	NextRestartAt time.Time `json:"nextRestartAt,omitzero"`

	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	LastStartedAt time.Time `json:"lastStartedAt,omitzero"`
	LastExitedAt  time.Time `json:"lastExitedAt,omitzero"`

	// ExitCode is nil before the first exit, after a signal, and when it is not known.
	ExitCode *int `json:"exitCode"`
	// Signal is the name of the signal that ended it, such as SIGKILL; empty for none.
	Signal    string `json:"signal,omitempty"`
	OOMKilled bool   `json:"oomKilled"`
	// LostBytes counts the bytes of output that could not be written, over all runs.
	LostBytes uint64 `json:"lostBytes"`
}

// Egress is what a process may reach. The Runner interprets it.
type Egress struct {
	Profile string   `json:"profile"`
	Domains []string `json:"domains"`
	Denied  []string `json:"denied"`
}

// Confinement returns what decides about what the process may see and reach.
func (n Intent) Confinement() plan.Confinement {
	return plan.Confinement{
		Permissions: n.Grants, AllowedDomains: n.AllowedDomains, PackageManagers: n.PackageManagers,
		Restrictions: n.Restrictions, Home: n.Home,
	}
}

// Identity identifies a run of a container since the host has started.
type Identity struct {
	Container string    `json:"container"`
	Started   time.Time `json:"started"` // as Docker says
}

func (i Identity) same(other Identity) bool {
	return i.Container != "" && i.Container == other.Container && i.Started.Equal(other.Started)
}

// State returns the status as callers are told it.
func (r Record) State() State {
	if r.Paused {
		return Paused
	}
	return r.Status
}

// Finished reports whether a process neither runs nor is going to.
func (r Record) Finished() bool { return r.Status != Running && !r.wanted() && !r.starting() }

// wanted reports whether a process is to be started again when it does not run. One that has never
// run is not: its caller got no answer, or an error.
func (r Record) wanted() bool {
	return r.KeepAlive && r.DesiredState == Running && !r.LastStartedAt.IsZero()
}

// starting reports whether a process has not run yet, but is about to.
func (r Record) starting() bool { return r.DesiredState == Running && r.LastStartedAt.IsZero() }

// recordVersion is the version of a record's format on disk.
const recordVersion = 1

// onDisk is a Record in its file.
type onDisk struct {
	Version int `json:"version"`
	Record
}

func (r Record) encode() ([]byte, error) {
	return json.MarshalIndent(onDisk{Version: recordVersion, Record: r}, "", "  ")
}

var idPattern = regexp.MustCompile(`^p-[a-z2-7]{12}$`)

// decode parses a record, which must be about id. It trusts nothing: whoever can write the file can
// write anything.
func decode(id string, text []byte) (Record, error) {
	var on onDisk
	if err := json.Unmarshal(text, &on); err != nil {
		return Record{}, err
	}
	if on.Version != recordVersion {
		return Record{}, fmt.Errorf("version %d is not known", on.Version)
	}
	r := on.Record
	var faults []error
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(r.ID != id, "it is about %q", r.ID)
	fault(r.UserID == "", "it has no userId")
	fault((r.Command == "") == (len(r.Argv) == 0), "it must have exactly one of command and argv")
	fault(r.DesiredState != Running && r.DesiredState != Stopped, "desiredState %q is not known",
		r.DesiredState)
	fault(r.Status != Running && r.Status != Stopped && r.Status != Exited,
		"status %q is not known", r.Status)
	if r.Ready != nil {
		_, err := checkReady(*r.Ready)
		faults = append(faults, err)
	}
	faults = append(faults, checkPorts(r.Expose))
	fault(r.Status == Running && r.Instance.Container == "", "it runs in no container")
	return r, errors.Join(faults...)
}
