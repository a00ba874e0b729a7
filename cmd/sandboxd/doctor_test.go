package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

func TestFindingsInColumns(t *testing.T) {
	var out bytes.Buffer
	table := newFindingTable(&out, []doctor.Check{{Name: "engine"}, {Name: "a command"}})
	table.print(doctor.Finding{Check: "engine", Level: doctor.OK, Found: `Docker "20" at /s`})
	table.print(doctor.Finding{Check: "a command", Level: doctor.Fault, Found: "2 faults\n  a: \x1b[2J", Remedy: "mend it"})
	want := `engine     ok       Docker "20" at /s
a command  FAULT    2 faults
                      a: ?[2J
                    to do: mend it
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
