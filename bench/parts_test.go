package main

import (
	"io"
	"slices"
	"strings"
	"testing"
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
