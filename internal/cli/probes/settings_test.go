package probes

import "testing"

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
