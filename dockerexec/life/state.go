package life

// State is where a container is between the wish for it and its last trace.
type State uint8

// The states, in the order in which a container comes to them.
const (
	// Queued waits for its turn. Nothing of it is on the host.
	Queued State = iota
	// Starting is being made, or taken over from an earlier service, by its maker.
	Starting
	// Ready takes commands.
	Ready
	// Draining takes commands, and is removed when its last call returns.
	Draining
	// Frozen is to be paused for as long as nobody needs it. Its Reason says who may thaw it.
	Frozen
	// Ended has no programs any more, and keeps their exit code. Only a detached container comes to
	// it.
	Ended
	// Leaving is being removed. No call gets it.
	Leaving
	// Gone is no concern of this service any more.
	Gone

	states = int(Gone) + 1
)

// Event is what happens to a container.
type Event uint8

// The events.
const (
	// Begin says that its turn has come.
	Begin Event = iota
	// Succeed says that its maker is done.
	Succeed
	// Fail says that its maker is done, and removes it.
	Fail
	// Call counts a call that needs it, or waits for it.
	Call
	// Return says that a call needs it no more.
	Return
	// Freeze pauses it because it is idle.
	Freeze
	// Pause pauses it because its user asked for that.
	Pause
	// Resume ends a pause that was asked for, thaws a detached one that was found paused, and ends
	// a freezing that has failed.
	Resume
	// Retire removes it when no call needs it: now, or when the last one returns.
	Retire
	// Evict removes it now, if no call needs it.
	Evict
	// Bind gives what it has to another one: it leaves the pool.
	Bind
	// Die says that its programs have ended.
	Die
	// Abort ends the making of it, whoever waits for it.
	Abort
	// Remove removes it, whoever needs it.
	Remove
	// Removed says that nothing is left of it.
	Removed
	// Release leaves it to the next service.
	Release

	events = int(Release) + 1
)

// Reason says why a container is frozen.
type Reason uint8

// The reasons.
const (
	// Idle was frozen by this service. The next call thaws it.
	Idle Reason = iota
	// Found was paused when this service found it. The next call has it taken over. A detached one
	// thaws as it is taken over, unless it was paused on request.
	Found
	// Requested was paused because its user asked for that, or its deadline. It is used again after
	// Resume.
	Requested
)

// A guard is a condition of a transition.
type guard uint8

const (
	always   guard = iota
	unused         // it is there for calls, and none needs it
	used           // a call needs it
	last           // it is the last call that returns
	more           // other calls still need it
	byCalls        // it is there for calls, or waits in the pool
	detached       // it goes on without calls and without a service
	idle           // Reason is Idle
	found          // Reason is Found
)

// A transition is a line of the table: in a state, an event leads to another state if the guard
// holds. An event that no line allows is refused, and changes nothing.
type transition struct {
	from  State
	on    Event
	guard guard
	to    State
}

// table has all transitions. docs/internals/container.md shows it, and says who causes each.
var table = []transition{
	{Queued, Begin, always, Starting},
	{Queued, Call, always, Queued},
	{Queued, Return, more, Queued},
	{Queued, Return, last, Leaving},
	{Queued, Remove, always, Leaving},
	{Queued, Fail, always, Leaving},

	{Starting, Succeed, always, Ready},
	{Starting, Fail, always, Leaving},
	{Starting, Call, always, Starting},
	{Starting, Return, always, Starting},
	{Starting, Die, byCalls, Leaving},
	{Starting, Die, detached, Ended},
	{Starting, Abort, always, Leaving},
	{Starting, Remove, always, Leaving},
	{Starting, Release, always, Gone},

	{Ready, Call, always, Ready},
	{Ready, Return, always, Ready},
	{Ready, Freeze, unused, Frozen},
	{Ready, Pause, detached, Frozen},
	{Ready, Retire, unused, Leaving},
	{Ready, Retire, used, Draining},
	{Ready, Evict, unused, Leaving},
	{Ready, Bind, unused, Gone},
	{Ready, Die, byCalls, Leaving},
	{Ready, Die, detached, Ended},
	{Ready, Remove, always, Leaving},
	{Ready, Release, always, Gone},

	{Draining, Call, always, Draining},
	{Draining, Return, more, Draining},
	{Draining, Return, last, Leaving},
	{Draining, Die, always, Leaving},
	{Draining, Remove, always, Leaving},
	{Draining, Release, always, Gone},

	{Frozen, Call, idle, Ready},
	{Frozen, Call, found, Starting},
	{Frozen, Pause, detached, Frozen},
	{Frozen, Resume, detached, Ready},
	{Frozen, Resume, idle, Ready},
	{Frozen, Retire, unused, Leaving},
	{Frozen, Evict, unused, Leaving},
	{Frozen, Die, byCalls, Leaving},
	{Frozen, Die, detached, Ended},
	{Frozen, Remove, always, Leaving},
	{Frozen, Release, always, Gone},

	{Ended, Remove, always, Leaving},
	{Ended, Fail, always, Leaving},

	{Leaving, Return, always, Leaving},
	{Leaving, Fail, always, Leaving},
	{Leaving, Removed, always, Gone},

	{Gone, Return, always, Gone},
}

// String returns the state's name in docs and events.
func (s State) String() string {
	return [...]string{"queued", "starting", "ready", "draining", "frozen", "ended", "leaving",
		"gone"}[s]
}

// String returns the event's name in docs.
func (e Event) String() string {
	return [...]string{"begin", "succeed", "fail", "call", "return", "freeze", "pause", "resume",
		"retire", "evict", "bind", "die",
		"abort", "remove", "removed", "release"}[e]
}

func (g guard) String() string {
	return [...]string{"", "no call needs it", "a call needs it", "it is the last call",
		"other calls remain",
		"it is there for calls", "it is detached", "it was idle", "it was found paused"}[g]
}
