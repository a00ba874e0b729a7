package launch

import (
	"path"
	"slices"
)

// MaxString is how many bytes Linux takes in one argument or variable of a program (execve(2),
// MAX_ARG_STRLEN).
const MaxString = 128<<10 - 1

// IsLine reports whether arguments are those of a shell that runs its last argument as a command
// line, for example `/bin/bash -l -c TEXT`. The agent gives a shell also a text that is longer than
// MaxString.
func IsLine(args []string) bool {
	if len(args) < 3 || !slices.Contains([]string{"bash", "sh"}, path.Base(args[0])) {
		return false
	}
	line := false
	for _, option := range args[1 : len(args)-1] {
		switch option {
		case "-c", "-lc":
			line = true
		case "-l", "--":
		default:
			return false
		}
	}
	return line
}
