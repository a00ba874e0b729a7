package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestReading(t *testing.T) {
	s := newService(t, &fakeExecutor{})
	before := s.left(t)
	found, err := s.measureReading(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.api) != 20 || len(found.health) != 20 || len(found.floor) != 20 {
		t.Errorf("%d reads, %d of health, %d of the floor, want 20 each", len(found.api), len(found.health), len(found.floor))
	}
	if left := s.left(t); !slices.Equal(before, left) {
		t.Errorf("left behind: %q, before %q", left, before)
	}
	t.Logf("read %v, health %v, floor %v", found.api.median(), found.health.median(), found.floor.median())
}

func TestLargeFiles(t *testing.T) {
	s := newService(t, &fakeExecutor{})
	before := s.left(t)
	found, err := s.measureLarge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []speeds{found.upload, found.uploadCopy, found.download, found.downloadCopy, found.synced, found.syncedCopy} {
		if len(list) != largeRounds || list.median() <= 0 {
			t.Errorf("speeds %v", list)
		}
	}
	if found.before == 0 || found.uploadPeak == 0 || found.downloadPeak == 0 {
		t.Errorf("memory %d, %d, %d", found.before, found.uploadPeak, found.downloadPeak)
	}
	if left := s.left(t); !slices.Equal(before, left) {
		t.Errorf("left behind: %q, before %q", left, before)
	}
}

func TestFitting(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name              string
		asked, free, want int64 // want 0 is an error
	}{
		{"enough", gib, 6 * gib, gib},
		{"a little less", gib, 6*gib - 1, gib / 2},
		{"a quick run", 128 << 20, gib, 128 << 20},
		{"hardly any", gib, 100 << 20, 16 << 20},
		{"too little", gib, 50 << 20, 0},
		{"none", gib, 0, 0},
		{"small ones may be small", 1 << 20, 6 << 20, 1 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := fitting(test.asked, test.free)
			if (err != nil) != (test.want == 0) || (err == nil && got != test.want) {
				t.Errorf("fitting(%d, %d) = %d, %v, want %d", test.asked, test.free, got, err, test.want)
			}
		})
	}
}

func TestSameContent(t *testing.T) {
	dir := t.TempDir()
	block := strings.Repeat("x", blockBytes)
	for _, test := range []struct {
		name, a, b string
		same       bool
	}{
		{"empty", "", "", true},
		{"short", "abc", "abc", true},
		{"whole blocks", block, block, true},
		{"another byte", block + "a", block + "b", false},
		{"longer", block, block + "a", false},
		{"shorter", block + "a", block, false},
	} {
		a, b := dir+"/a", dir+"/b"
		if err := os.WriteFile(a, []byte(test.a), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b, []byte(test.b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sameContent(t.Context(), a, b); (err == nil) != test.same {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestDeciding(t *testing.T) {
	subject, tags, err := manyGrants()
	if err != nil {
		t.Fatal(err)
	}
	if len(subject.Mounts) != decidingMounts || len(tags) != decidingTags {
		t.Errorf("%d mounts, %d tags", len(subject.Mounts), len(tags))
	}
	l := &lab{settings: settings{decisions: 20}}
	found, err := l.measureDeciding()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []sample{found.tags, found.decide, found.spec, found.fingerprint, found.all, found.bare} {
		if len(list) != 20 || list.median() <= 0 {
			t.Errorf("sample %v", list)
		}
	}
}

func TestGrants(t *testing.T) {
	s := newService(t, &fakeExecutor{})
	found, err := s.measureGrants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.none) != 20 || len(found.workspace) != 20 || len(found.alternating) != 20 || found.cold != 0 {
		t.Errorf("%d, %d, %d calls, %d of them cold", len(found.none), len(found.workspace), len(found.alternating), found.cold)
	}
}

func TestGrantsThatNeverGetWarm(t *testing.T) {
	s := newService(t, &fakeExecutor{forgetful: true})
	if _, err := s.measureGrants(t.Context()); err == nil || !strings.Contains(err.Error(), "no container") {
		t.Errorf("measureGrants: %v", err)
	}
}

// TestReportTables: each row of a table has as many cells as its head.
func TestReportTables(t *testing.T) {
	f := findings{
		settings: settings{largeBytes: 1 << 30},
		policy:   []registering{{}, {Others: 999}},
		runtimes: []runtimeFindings{
			{runtime: "runc", streams: []stream{{}}, large: large{bytes: 1 << 20}},
			{runtime: "runsc", large: large{bytes: 1 << 30}},
		},
	}
	text := report(results{settings: f.settings, passes: []findings{f, f}})
	cells := 0
	for _, line := range strings.Split(text, "\n") {
		n := strings.Count(line, "|")
		if n > 0 && cells > 0 && n != cells {
			t.Errorf("%d cells, the head has %d: %s", n, cells, line)
		}
		cells = n
	}
	for _, title := range []string{"Reading a file", "Large files", "Deciding", "Grants", "Calls that may use the network", "DNS questions", "The guard", "Registering containers", "Durable processes", "Warm commands", "The command line", "A session of an agent's commands", "Containers at rest"} {
		if !strings.Contains(text, "\n## "+title+"\n") {
			t.Errorf("no section %q", title)
		}
	}
	if !strings.Contains(text, "Little was free") {
		t.Error("a smaller file is not told")
	}
}
