// Package life is the life of one container: its state, who needs it, and whether Docker has it
// paused.
//
// A Life has a lock of its own, and its methods are the events of one table (state.go;
// docs/internals/container.md draws it). An event that the table does not allow in the present
// state is refused and changes nothing, so who causes it learns that somebody else was faster.
// Nobody else writes a Life, and a Life calls nobody but its Engine.
//
// One rule decides about pauses. A container is paused while nobody is at it (Use) and it is frozen
// or held (Hold). Who is at it needs Docker to start a program in it or to signal it, and Docker
// does neither in a paused container. Who holds it needs that its programs change nothing on the
// host for a moment. Both are counted, each excludes the other, and who comes second waits. Calls
// are counted apart: they go on in a container that is held, only later.
package life
