package api

import (
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
)

// The size of a terminal that has none, and the most that one may have.
const (
	defaultRows, defaultCols = 24, 80
	maxSide                  = 10_000
)

// terminal reads the terminal that an exec asks for.
func terminal(t types.Terminal) (dockerexec.Size, error) {
	rows, cols := defaultRows, defaultCols
	if t.Rows != nil {
		rows = *t.Rows
	}
	if t.Cols != nil {
		cols = *t.Cols
	}
	return terminalSize("tty.", rows, cols)
}

// terminalSize reads a size from fields whose names begin with prefix.
func terminalSize(prefix string, rows, cols int) (dockerexec.Size, error) {
	for _, side := range []struct {
		name  string
		value int
	}{{"rows", rows}, {"cols", cols}} {
		if side.value < 1 || side.value > maxSide {
			return dockerexec.Size{}, fmt.Errorf("%s%s %d is not from 1 to %d: %w", prefix, side.name, side.value, maxSide, cerrdefs.ErrInvalidArgument)
		}
	}
	return dockerexec.Size{Rows: uint16(rows), Cols: uint16(cols)}, nil
}
