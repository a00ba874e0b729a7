package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

func TestSectionsFlag(t *testing.T) {
	for _, test := range []struct {
		name, args string
		parts      []string
		out        string
		fails      bool
	}{
		{"all", "", nil, ".", false},
		{"quick", "-quick", nil, "", false},
		{"quick with a folder", "-quick -out x", nil, "x", false},
		{"some", "-sections dns,guard", []string{"dns", "guard"}, "", false},
		{"some with a folder", "-sections dns -out x", []string{"dns"}, "x", false},
		{"unknown", "-sections dns,nothing", nil, "", true},
		{"empty among them", "-sections dns,", nil, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg, err := parseFlags(strings.Fields(test.args), io.Discard)
			if (err != nil) != test.fails || err == nil && (!slices.Equal(cfg.parts, test.parts) || cfg.out != test.out) {
				t.Errorf("%q, out %q, %v", cfg.parts, cfg.out, err)
			}
		})
	}
}

// TestPartsAreKnown: every name in the lists of parts is that of a part.
func TestPartsAreKnown(t *testing.T) {
	for _, name := range slices.Concat(insideParts, rootParts, internetParts) {
		if !slices.Contains(partNames(), name) {
			t.Errorf("there is no part %q", name)
		}
	}
}

func TestReportOfAPart(t *testing.T) {
	cfg := settings{parts: []string{"rest"}}
	f := findings{settings: cfg, runtimes: []runtimeFindings{{runtime: "runsc"}}}
	text := report(results{settings: cfg, passes: []findings{f, f}})
	if strings.Contains(text, "## Warm") || !strings.Contains(text, "## Containers at rest") {
		t.Errorf("sections:\n%s", text)
	}
	for _, want := range []string{"1 of 3 targets are met", "**not measured**", "A part of the benchmarks"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
}

func TestReadHandshakes(t *testing.T) {
	var connect, secure sample
	if err := readHandshakes(types.Output{Stdout: strings.Repeat("10 25\n", rowLength)}, &connect, &secure); err != nil {
		t.Fatal(err)
	}
	if len(connect) != rowLength || connect.median() != 10 || len(secure) != rowLength || secure.median() != 25 {
		t.Errorf("%v, %v", connect, secure)
	}
	for _, text := range []string{"", "10 25\n", strings.Repeat("10 x\n", rowLength)} {
		if err := readHandshakes(types.Output{Stdout: text}, &connect, &secure); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

func TestApart(t *testing.T) {
	row := func(d time.Duration) sample { return slices.Repeat(sample{d}, rowLength) }
	a := slices.Concat(row(50), row(17), row(100), row(1))
	b := slices.Concat(row(40), row(10), row(20))
	if got := apart(a, b); got != 10 {
		t.Errorf("rows that differ by 10, 7 and 80 are apart by %d", got)
	}
	if got := apart(a, nil); got != 0 {
		t.Errorf("without rows: %d", got)
	}
}
