package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/engine"
)

// AskDocker asks Docker about itself. Several checks share it, so that a slow Docker is asked once.
type AskDocker func(context.Context) (engine.Info, error)

const startEngine = "start it: systemctl start docker, or dockerd; and check that docker.socketPath is its socket"

// oldestMajor and oldestMinor are the oldest API version that the service works with, and
// oldestDocker is the first Docker that has it. A daemon's own version says less: each distribution
// numbers it in its own way.
const (
	oldestMajor, oldestMinor = 1, 41
	oldestDocker             = "20.10"
)

// DockerAnswers reports whether the daemon behind a socket answers, and is new enough.
func DockerAnswers(socket string, ask AskDocker) Check {
	return Check{"engine", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		if errors.Is(err, fs.ErrPermission) {
			return skipped("only root and members of the group of %s may ask Docker", socket)
		}
		if err != nil {
			return wrong(startEngine, "%v", err)
		}
		var major, minor int
		if _, err := fmt.Sscanf(e.API, "%d.%d", &major, &minor); err != nil {
			return warning("see that it is Docker "+oldestDocker+" or newer",
				"Docker at %s calls its API %q", socket, e.API)
		}
		if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
			return wrong("install a newer one", "Docker %s at %s, with API %s, is older than %s",
				e.Version, socket, e.API, oldestDocker)
		}
		return ok("Docker %s at %s", e.Version, socket)
	}}
}

// RuntimeKnown reports whether Docker knows a runtime that the settings name under key, and whether
// the runtime's program runs. unused, if not empty, says why the runtime is not needed. version
// runs the program.
func RuntimeKnown(key, name, unused string, weaker bool, ask AskDocker,
	version func(ctx context.Context, program string) (string, error)) Check {
	return Check{"runtime " + name, func(ctx context.Context) Finding {
		e, err := ask(ctx)
		if err != nil {
			return skipped("Docker does not answer")
		}
		program, known := e.Programs[name]
		if !known && unused != "" {
			return skipped("%s, and Docker does not know it", unused)
		}
		if !known {
			return accepted(weaker,
				wrong(fmt.Sprintf(
					"register it with Docker (scripts/setup.sh does so for gVisor), or set %s",
					key),
					"Docker does not know the runtime %s; it knows %s", name,
					strings.Join(e.Runtimes, ", ")))
		}
		if program == "" {
			return ok("known to Docker")
		}
		says, err := version(ctx, program)
		if err != nil {
			return wrong(
				"install it again (scripts/setup.sh builds runsc), and check that Docker's daemon.json names it",
				"%s does not run: %v", program, err)
		}
		if !slices.Contains(e.GVisor, name) {
			return warning(fmt.Sprintf("set %s to gVisor's runsc, unless this is meant", key),
				"%s is not gVisor: commands share the host's kernel", path.Base(program))
		}
		return ok("%s", says)
	}}
}

// OfflineRuntime reports whether Docker has a runtime with which containers without a network need
// no network of Docker's.
func OfflineRuntime(name string, ask AskDocker) Check {
	return Check{"offline runtime", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		switch offline := e.Offline[name]; {
		case err != nil:
			return skipped("Docker does not answer")
		case offline != "":
			return ok("%s, for containers without a network", offline)
		case slices.Contains(e.GVisor, name):
			return warning(
				fmt.Sprintf(
					"register %s with Docker as %s-offline too, with --network=none as its last argument (scripts/setup.sh does so)",
					name, name),
				"containers without a network start more slowly than they could: Docker does not know %s-offline",
				name)
		}
		return skipped("%s is neither gVisor nor runc", name)
	}}
}

// LinkedRuntime reports whether Docker has a runtime that connects containers to their gateway in
// Docker's place. Where the runtime's own program is not to be seen, its linker need not be either.
func LinkedRuntime(name string, ask AskDocker, executable func(path string) bool) Check {
	return Check{"linked runtime", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		linker := path.Join(path.Dir(e.Programs[name]), "runsc-linker")
		switch linked := e.Linked[name]; {
		case err != nil:
			return skipped("Docker does not answer")
		case !slices.Contains(e.GVisor, name):
			return skipped("%s is not gVisor", name)
		case linked != "" && executable(e.Programs[name]) && !executable(linker):
			return wrong("install it (scripts/setup.sh does so), or take "+linked+" out of daemon.json",
				"no container that reaches names starts: there is no program %s", linker)
		case linked != "":
			return ok("%s, for containers that reach names", linked)
		case path.Base(e.Programs[name]) != freezer:
			return skipped("Docker connects containers that reach names: %s is not %s",
				e.Programs[name], freezer)
		}
		return warning(
			fmt.Sprintf(
				"register the runsc-linked beside %s with Docker as %s-linked, with the same arguments (scripts/setup.sh does so for a runsc without arguments)",
				e.Programs[name], name),
			"containers that reach names start more slowly than they could: Docker does not know %s-linked",
			name)
	}}
}

// freezer is the program that calls runsc for Docker and stops paused containers completely:
// tools/runsc/freezer.
const freezer = "runsc-freezer"

// FreezingRuntime reports whether gVisor itself stops when Docker pauses a container of a runtime.
func FreezingRuntime(name string, ask AskDocker) Check {
	return Check{"frozen containers", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		switch {
		case err != nil:
			return skipped("Docker does not answer")
		case !slices.Contains(e.GVisor, name):
			return skipped("%s is not gVisor", name)
		case path.Base(e.Programs[name]) == freezer:
			return ok("they are stopped completely, by %s", e.Programs[name])
		}
		return warning(
			fmt.Sprintf("have Docker call %s through %s (scripts/setup.sh does so)", name,
				freezer),
			"they take some processor time and wake later than they could: Docker calls %s itself",
			cmp.Or(e.Programs[name], name))
	}}
}

// BootPrograms reports whether the two programs through which gVisor may boot a container are
// beside a runtime's program, both or neither. executable reports whether a path is a program.
func BootPrograms(name string, ask AskDocker, executable func(path string) bool) Check {
	return Check{"gvisor-bin", func(ctx context.Context) Finding {
		e, err := ask(ctx)
		if err != nil {
			return skipped("Docker does not answer")
		}
		program := e.Programs[name]
		if !slices.Contains(e.GVisor, name) || !path.IsAbs(program) {
			return skipped("%s is not a program of gVisor's", name)
		}
		dir := path.Join(path.Dir(program), "gvisor-bin")
		sentry := executable(path.Join(dir, "gvisor_sentry"))
		prewarmer := executable(path.Join(dir, "gvisor-sentry-prewarmer"))
		switch {
		case sentry && prewarmer:
			return ok("containers boot through %s", dir)
		case prewarmer:
			return wrong("install gvisor_sentry there (scripts/setup.sh does so for a runsc of its own), or remove the other",
				"no container starts: %s has gvisor-sentry-prewarmer, and no gvisor_sentry", dir)
		case sentry:
			return warning("install gvisor-sentry-prewarmer there (scripts/setup.sh does so for a runsc of its own)",
				"containers start more slowly than they could: %s has no gvisor-sentry-prewarmer", dir)
		}
		return ok("containers boot from runsc itself")
	}}
}

// ImageThere reports whether the sandbox image is there, and whether it fits this build. find
// returns the version on the image's label: none, for an image that is not this project's.
func ImageThere(ref, wanted string, ask AskDocker,
	find func(context.Context) (version string, err error)) Check {
	return Check{"image", func(ctx context.Context) Finding {
		if _, err := ask(ctx); err != nil {
			return skipped("Docker does not answer")
		}
		const build = "build it with `sandboxd image build` in the project's folder (make setup does it), or get it with `sandboxd image pull`"
		version, err := find(ctx)
		switch {
		case err != nil:
			return wrong(build, "%v", err)
		case version == "":
			return ok("%s, which is not this project's", ref)
		case version != wanted:
			return wrong(build, "%s is version %s, and this build goes with version %s", ref,
				version, wanted)
		default:
			return ok("%s, version %s", ref, version)
		}
	}}
}
