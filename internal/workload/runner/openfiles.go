package runner

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/workload/process"
	"github.com/daycare-run/sandbox/pathmap"
)

// openFilesLimit is how long a look at what is open may take, and maxOpenText how many bytes of
// paths it may print.
const (
	openFilesLimit = 5 * time.Second
	maxOpenText    = 16 << 10
)

// OpenFiles implements process.Runner.
func (r *Runner) OpenFiles(ctx context.Context, i process.Instance,
	sandboxID string) (names []string, _ error) {
	if r.sandboxes == nil {
		return nil, errors.New("no command can run beside a process")
	}
	box, err := r.planner.Sandboxes().Find(sandboxID)
	if err != nil {
		return nil, err
	}
	c, err := r.planner.Resolve(box, plan.Confinement{})
	if err != nil {
		return nil, err
	}
	text, err := r.sandboxes.PrintBeside(ctx, i.Container,
		session.OpenFilesCommand(policy.Home.String()), openFilesLimit, maxOpenText)
	if err != nil {
		return nil, err
	}
	return namesInHome(c.Paths, string(text)), nil
}

// namesInHome returns which names below the home a tenant's list of paths has, each with a NUL after
// it. Others, and those that cannot be printed in a line, are left out.
func namesInHome(paths pathmap.Map, text string) (names []string) {
	list := strings.Split(text, "\x00")
	for _, path := range list[:len(list)-1] {
		inside, err := pathmap.ParseContainer(path)
		if err != nil || !utf8.ValidString(path) ||
			strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) {
			continue
		}
		if at, rest, err := paths.Locate(inside); err == nil && at.Container == policy.Home &&
			inside != policy.Home {
			names = append(names, strings.Clone(rest)) // not the whole text
		}
	}
	return names
}
