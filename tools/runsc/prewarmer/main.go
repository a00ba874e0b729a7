// Prewarmer is gVisor's gvisor-sentry-prewarmer: `prewarmer PROGRAM ARGV0 [ARGUMENT...]` executes
// PROGRAM with what follows as its arguments, once the process has a table of file descriptors of
// the size that gVisor needs. All of it is in entry_amd64.s and entry_arm64.s; Go's runtime never starts.
package main

func main() { panic("not linked with -E=main.entry") }
