package config

import (
	"fmt"
	"strings"
)

// fault is one thing that is wrong: the key, as a path such as docker.capAdd[1], or the variable, and
// what is wrong with its value.
type fault struct{ key, says string }

// faults is all that is wrong, as one error.
type faults []fault

func (f faults) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d fault", len(f))
	if len(f) > 1 {
		b.WriteByte('s')
	}
	for _, one := range f {
		fmt.Fprintf(&b, "\n  %s: %s", one.key, one.says)
	}
	return b.String()
}

func (f *faults) add(key, format string, args ...any) {
	*f = append(*f, fault{key, fmt.Sprintf(format, args...)})
}
