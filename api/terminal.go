package api

import (
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/api/types"
)

// The default size of a terminal, and the largest one.
const (
	defaultRows, defaultCols = 24, 80
	maxSide                  = 10_000
)

// terminal reads the terminal that an exec asks for.
func terminal(t types.Terminal) (specs.Box, error) {
	rows, cols := defaultRows, defaultCols
	if t.Rows != nil {
		rows = *t.Rows
	}
	if t.Cols != nil {
		cols = *t.Cols
	}
	return terminalSize("tty.", rows, cols)
}

// terminalSize checks a size whose fields have names that begin with prefix.
func terminalSize(prefix string, rows, cols int) (specs.Box, error) {
	for _, side := range []struct {
		name  string
		value int
	}{{"rows", rows}, {"cols", cols}} {
		if side.value < 1 || side.value > maxSide {
			return specs.Box{}, fmt.Errorf("%s%s %d is not from 1 to %d: %w", prefix, side.name,
				side.value, maxSide, cerrdefs.ErrInvalidArgument)
		}
	}
	return specs.Box{Height: uint(rows), Width: uint(cols)}, nil
}
