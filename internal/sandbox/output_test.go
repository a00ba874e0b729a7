package sandbox

import (
	"bytes"
	"strings"
	"testing"
)

func TestLastOutput(t *testing.T) {
	for name, pieces := range map[string][]string{
		"nothing":          nil,
		"little":           {"ab", "cd"},
		"just full":        {strings.Repeat("x", maxOutputKept)},
		"over":             {strings.Repeat("x", maxOutputKept-1), "abc"},
		"small, then over": {"abc", strings.Repeat("x", maxOutputKept/2), strings.Repeat("y", maxOutputKept/2), "z"},
		"one less":         {"a", strings.Repeat("x", maxOutputKept), "b"},
		"at once":          {"begin", strings.Repeat("0123456789", maxOutputKept), "end"},
	} {
		kept, all := &lastOutput{}, strings.Join(pieces, "")
		for _, piece := range pieces {
			kept.add([]byte(piece))
		}
		text, cut := kept.text()
		if want := all[max(len(all)-maxOutputKept, 0):]; !bytes.Equal(text, []byte(want)) || cut != (len(all) > maxOutputKept) {
			t.Errorf("%s: %d bytes of %d, cut %t", name, len(text), len(want), cut)
		}
		if most := min(max(2*len(all), 8), maxOutputKept); cap(kept.ring) > most && len(all) < maxOutputKept/4 || cap(kept.ring) > maxOutputKept {
			t.Errorf("%s: %d bytes take %d", name, len(all), cap(kept.ring))
		}
	}
}
