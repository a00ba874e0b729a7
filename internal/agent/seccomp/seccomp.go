// Package seccomp takes from the agent, and from every command that it starts, what a command has no use for and
// an attack has: mounts, namespaces, kernel modules, keys, handles of files. Docker's own profile does
// not reach into gVisor, which honours a filter that a process sets for itself.
//
// filter.go is the program, install.go sets it.
package seccomp

// Variable is set in the environment of every container, by which the agent knows what to refuse: with Allowed,
// user namespaces are not.
const (
	Variable = "DAYCARE_USER_NAMESPACES"
	Allowed  = "allowed"
	Refused  = "refused"
)
