package plan

import (
	"strings"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
)

// maxCommandBytes bounds a command with its environment: about what Linux can start. A command line
// alone may be as long, and single arguments and variables have launch.MaxString.
const maxCommandBytes = 2 << 20

// CheckCommand refuses a command that no container could start, with the variables that its caller
// gives.
func CheckCommand(c launch.Command, env, secrets map[string]string) error {
	argv, size := c.Process.Args, len(c.Shell)
	for i, arg := range argv {
		if strings.Contains(arg, "\x00") {
			return errs.Invalid("argv[%d] has a NUL byte", i)
		}
		if len(arg) > launch.MaxString && (i < len(argv)-1 || !launch.IsLine(argv)) {
			return errs.Invalid(
				"argv[%d] has %d bytes, and Linux takes at most %d in one argument; pass it in stdin or a file, or give a command instead of argv",
				i, len(arg), launch.MaxString)
		}
		size += len(arg) + 1
	}
	for _, variables := range []map[string]string{env, secrets} {
		for name, value := range variables {
			size += len(name) + len(value) + 2
		}
	}
	switch {
	case c.Shell != "" && len(argv) > 0:
		return errs.Invalid("command and argv are both set; give one")
	case strings.TrimSpace(c.Shell) == "" && len(argv) == 0:
		return errs.Invalid("command is empty")
	case len(argv) > 0 && argv[0] == "":
		return errs.Invalid("argv[0] is empty")
	case strings.Contains(c.Shell, "\x00"):
		return errs.Invalid("command has a NUL byte")
	case c.Login && c.Shell == "":
		return errs.Invalid("login goes with command, not with argv")
	case size > maxCommandBytes:
		return errs.Invalid(
			"the command and its environment have %d bytes, more than %d; pass what is large in stdin or a file",
			size, maxCommandBytes)
	}
	if err := CheckVariables("env", env); err != nil {
		return err
	}
	return CheckVariables("secrets", secrets)
}
