package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
)

// askHealth asks the service for its health.
type askHealth func(context.Context) (types.Health, error)

// ServiceAnswers reports whether the service answers, can run commands, and has the version of this
// build, mine.
func ServiceAnswers(socket, mine string, ask askHealth) Check {
	return Check{"service", func(ctx context.Context) Finding {
		h, err := ask(ctx)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return skipped("only the owner of %s, root, may ask the service", socket)
		case errors.Is(err, fs.ErrNotExist): // a service leaves its socket behind when it ends
			return warning("start it: systemctl start sandboxd, or bin/sandboxd",
				"no service has been started yet: there is no %s", socket)
		case err != nil:
			return wrong(
				"start it: systemctl start sandboxd, or bin/sandboxd; its log says why it has ended. `sandbox doctor --offline` checks only the host",
				"%v", err)
		case h.Version == "":
			return wrong("stop what listens there, or set listen to another path",
				"what answers at %s is not sandboxd", socket)
		case h.Problem != "":
			return wrong("the checks above say more", "commands cannot run: %s", h.Problem)
		case len(h.Warnings) > 0:
			return warning("its log says more", "%s", strings.Join(h.Warnings, "; "))
		case h.Version != mine:
			return warning("install both from one build, and start the service again",
				"sandboxd is %s, and this command is %s", h.Version, mine)
		case len(h.Settings.Pending) > 0:
			return warning("start the service again",
				"settings were changed that need a restart: %s",
				strings.Join(h.Settings.Pending, ", "))
		default:
			return ok("sandboxd %s answers at %s", h.Version, socket)
		}
	}}
}
