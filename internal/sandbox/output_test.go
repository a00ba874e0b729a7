package sandbox

import (
	"bytes"
	"strings"
	"testing"
)

func TestLastOutput(t *testing.T) {
	for name, pieces := range map[string][]string{
		"nothing":   nil,
		"little":    {"ab", "cd"},
		"just full": {strings.Repeat("x", maxOutputKept)},
		"over":      {strings.Repeat("x", maxOutputKept-1), "abc"},
		"at once":   {"begin", strings.Repeat("0123456789", maxOutputKept), "end"},
	} {
		kept, all := &lastOutput{}, strings.Join(pieces, "")
		for _, piece := range pieces {
			kept.add([]byte(piece))
		}
		text, cut := kept.text()
		if want := all[max(len(all)-maxOutputKept, 0):]; !bytes.Equal(text, []byte(want)) || cut != (len(all) > maxOutputKept) {
			t.Errorf("%s: %d bytes of %d, cut %t", name, len(text), len(want), cut)
		}
	}
}
