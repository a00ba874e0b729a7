package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/cli/doctor"
)

func TestSettingsFlag(t *testing.T) {
	for want, args := range map[string][]string{
		"":       {"sandboxd"},
		"a.json": {"sandboxd", "--settings", "a.json"},
		"b.json": {"sandboxd", "--settings=b.json"},
		"c.json": {"sandboxd", "-s", "c.json", ""},
		"d.json": {"sandboxd", "-s=d.json"},
		"e.json": {"sandboxd", "-se.json", ""},
	} {
		if got := settingsFlag(args); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	if got := settingsFlag([]string{"sandboxd", "--settings"}); got != "" {
		t.Errorf("without a value: %q", got)
	}
}

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
