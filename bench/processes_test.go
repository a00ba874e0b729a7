package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

func TestCheckNumbered(t *testing.T) {
	lines := func(numbers ...int64) string {
		var text strings.Builder
		for _, n := range numbers {
			text.WriteString(numbered(n) + "\n")
		}
		return text.String()
	}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string // in the fault; empty for none
	}{
		{"whole", map[string]string{"process.log": lines(12), "process.log.1": lines(9, 10, 11), "process.log.2": lines(8)}, ""},
		{"the current file is new", map[string]string{"process.log": "", "process.log.1": lines(11, 12)}, ""},
		{"a gap in a file", map[string]string{"process.log": lines(12), "process.log.1": lines(9, 11)}, "comes next"},
		{"a gap between files", map[string]string{"process.log": lines(12), "process.log.1": lines(9, 10)}, "comes next"},
		{"a line twice", map[string]string{"process.log": lines(12), "process.log.1": lines(11, 12)}, "comes next"},
		{"half a line", map[string]string{"process.log": lines(12)[:50], "process.log.1": lines(11)}, "comes next"},
		{"the end is missing", map[string]string{"process.log": lines(11), "process.log.1": lines(10)}, "would be …12"},
		{"empty", map[string]string{"process.log": ""}, "empty"},
		{"none", nil, "empty"},
		{"not rotated", map[string]string{"process.log": lines(11, 12)}, "not rotated"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, _, fault, err := checkNumbered(filepath.Join(dir, "process.log"), 12)
			if err != nil || (fault == "") != (test.want == "") || !strings.Contains(fault, test.want) {
				t.Errorf("%q, %v", fault, err)
			}
		})
	}
}

func TestAdopted(t *testing.T) {
	pid, other, begun := 7, 8, time.Unix(1, 0)
	was := types.Process{ID: "p-a", Status: types.ProcessRunning, PID: &pid, LastStartedAt: begun}
	probe := types.Process{ID: "p-probe", Status: types.ProcessExited}
	change := func(f func(*types.Process)) []types.Process {
		now := was
		f(&now)
		return []types.Process{now, probe}
	}
	for name, test := range map[string]struct {
		list []types.Process
		is   bool
	}{
		"as it was":            {change(func(*types.Process) {}), true},
		"with an older probe":  {append(change(func(*types.Process) {}), types.Process{ID: "p-old"}), true},
		"not looked at yet":    {[]types.Process{was, {ID: "p-probe", Status: types.ProcessRunning}}, false},
		"missing":              {[]types.Process{probe}, false},
		"exited":               {change(func(p *types.Process) { p.Status = types.ProcessExited }), false},
		"another pid":          {change(func(p *types.Process) { p.PID = &other }), false},
		"no pid":               {change(func(p *types.Process) { p.PID = nil }), false},
		"restarted":            {change(func(p *types.Process) { p.RestartCount = 1 }), false},
		"started another time": {change(func(p *types.Process) { p.LastStartedAt = begun.Add(1) }), false},
	} {
		if err := adopted(test.list, map[string]types.Process{"p-a": was}, "p-probe"); (err == nil) != test.is {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAffordable(t *testing.T) {
	for _, test := range []struct {
		asked     int
		available int64
		want      int
	}{{50, 50 * processMemory, 50}, {50, 50*processMemory - 1, 49}, {10, 1 << 40, 10}, {50, processMemory - 1, 0}} {
		if got := affordable(test.asked, test.available); got != test.want {
			t.Errorf("affordable(%d, %d) = %d, want %d", test.asked, test.available, got, test.want)
		}
	}
}
