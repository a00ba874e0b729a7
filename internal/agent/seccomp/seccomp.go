// Package seccomp denies the agent, and every command that it starts, the system calls that an
// attack needs and a command does not: for mounts, namespaces, kernel modules, keys, file handles,
// children of the agent. Docker's own profile does not reach into gVisor, which honours a filter
// that a process sets for itself.
//
// filter.go is the filter's program, install.go sets it.
package seccomp

// Variable is set in the environment of every container. It tells the agent what to refuse: with
// Allowed, user namespaces are not refused.
const (
	Variable = "DAYCARE_USER_NAMESPACES"
	Allowed  = "allowed"
	Refused  = "refused"
)
