package e2e

import (
	"strings"
	"sync"
	"testing"
)

// Scenarios run beside each other: each has a sandboxd or users of its own, and names, addresses, images and ports that
// nobody else has. Those in alone run before all others, one at a time.
var alone = map[string]string{
	"TestRulesOfAServiceThatIsGone":        "the next service has to get the subnets from Docker that the one before had",
	"TestManyCommandsAtOnce":               "its commands, with what they leave behind, fill a container under gVisor unless each ends at once",
	"TestCommandsInFlight":                 "its 500 commands begin at once, and what runs beside them on a slow machine waits for longer than it may",
	"TestHostileCommandsEndWithTheService": "its commands fight for all that the processors can do, and what runs beside them gets nothing done",
	"TestAMaskedFileMadeAgain":             "it wants the number that a file has had which is gone, before any other file gets it",
}

// flushing are the scenarios that nothing else may run beside in a place where nobody but us has rules: there they
// flush all that there are, those of other labs and of Docker included, or restart it. They have a current engine of
// their own, so that others need not wait for them.
var flushing = []string{"TestEgressStaysClosed", "TestEgressStaysClosedWhileDockerRestarts"}

// begun are the tests that are known to run beside others, or alone.
var begun sync.Map

// begin limits the time of a scenario. Others may run beside it from here on, unless it is one of alone.
func begin(t *testing.T) {
	t.Helper()
	if scenarios.Watches(t.Name()) {
		return // a case of one
	}
	beside(t)
	scenarios.Watch(t)
}

// beside waits for the turn of a test that others may run beside.
func beside(t *testing.T) {
	t.Helper()
	if _, is := begun.LoadOrStore(t, nil); is {
		return
	}
	t.Cleanup(func() { begun.Delete(t) })
	if alone[topOf(t)] == "" {
		t.Parallel()
	}
}

// topOf is the name of the test that a scenario or a case is part of.
func topOf(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}
