package e2e

import (
	"strings"
	"sync"
	"testing"
)

// Scenarios run in parallel: each has its own sandboxd or its own users, and names, addresses, images and ports that no other
// scenario has. Those in alone run before all others, one at a time.
var alone = map[string]string{
	"TestRulesOfAServiceThatIsGone":        "the next service has to get the subnets from Docker that the one before had",
	"TestManyCommandsAtOnce":               "its commands, with what they leave behind, fill a container under gVisor unless each ends at once",
	"TestCommandsInFlight":                 "its 500 commands begin at once, and what runs beside them on a slow machine waits for longer than it may",
	"TestHostileCommandsEndWithTheService": "its commands fight for all that the processors can do, and what runs beside them gets nothing done",
	"TestAMaskedFileMadeAgain":             "it wants the number that a file has had which is gone, before any other file gets it",
}

// flushing are the scenarios that run alone in a place where only we have rules: there they flush all rules, those of
// other labs and of Docker included, or restart Docker. They have a current engine of their own, so that other scenarios
// need not wait for them.
var flushing = []string{"TestEgressStaysClosed", "TestEgressStaysClosedWhileDockerRestarts"}

// begun has the tests that are known to run in parallel, or alone.
var begun sync.Map

// begin limits the time of a scenario. From here on others may run in parallel, unless the scenario is in alone.
func begin(t *testing.T) {
	t.Helper()
	if scenarios.Watches(t.Name()) {
		return // a case of a scenario
	}
	beside(t)
	scenarios.Watch(t)
}

// beside waits until the test may run in parallel with others, unless the test is in alone.
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

// topOf returns the name of the test that a scenario or a case belongs to.
func topOf(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}
