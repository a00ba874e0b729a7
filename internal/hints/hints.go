// Package hints words what a call's result says beside the output, once for all doors: what
// happened, and what to do about it in the terms of whoever is told.
package hints

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Hint is something that a call's result says. Whoever finds it out sets its kind and the fields of
// that kind; each door adds the message.
type Hint = types.Hint

// The kinds for those who must not know the API's types.
const (
	OutOfMemory    = types.HintOutOfMemory
	OutOfProcesses = types.HintOutOfProcesses
	NoSpace        = types.HintNoSpace
)

// Restarted tells why a persistent sandbox was started again before the command.
func Restarted(why string) Hint { return Hint{Kind: types.HintRestarted, Reason: why} }

// OpenElsewhere tells that a file has changed that a process has open in another kernel. The process
// is empty if no command can run beside it.
func OpenElsewhere(path, process string) Hint {
	return Hint{Kind: types.HintOpenElsewhere, Path: path, Process: process}
}

// Inside marks hints as those of a command inside its persistent sandbox.
func Inside(list []Hint) { ranIn(list, types.InSandbox) }

// Beside says of hints that their command ran in a process's container.
func Beside(list []Hint) { ranIn(list, types.InProcess) }

func ranIn(list []Hint, in types.In) {
	for i := range list {
		list[i].In = in
	}
}

// Door is a way to a sandbox.
type Door int

// The doors.
const (
	API Door = iota
	CLI
	MCP
	Wrapper // sandbox --settings
	E2B
	doors
)

// kind says what a kind's hints tell: what happened, and each door's advice; "" where there is
// none.
type kind struct {
	happened func(Hint) string
	advice   [doors]string
}

// kinds are all kinds of hints.
var kinds = map[types.HintKind]kind{
	types.HintNoNetwork: {
		happened: func(Hint) string { return "the command had no network" },
		advice: [doors]string{
			API:     "if it is needed, ask for @network in permissions, and for names in allowedDomains or presets in packageManagers",
			CLI:     "if it is needed, allow names with --allow-domain, or a language's registries with --package-manager",
			MCP:     "if it is needed, ask for @network in permissions, and for names in allowedDomains or presets in packageManagers",
			Wrapper: "if it is needed, add names to network.allowedDomains of the settings",
			E2B:     "if it is needed, allow names with allowOut in the sandbox's network, or all with allowInternetAccess",
		},
	},
	types.HintReadOnly: {
		happened: func(h Hint) string {
			return "the command may not write to " + or(h.Path, "a place that it tried to")
		},
		advice: [doors]string{
			API:     "if it is needed, ask for @workspace (the working directory) or @write:/path (a granted file cannot be replaced) in permissions; denyWrite wins",
			CLI:     "let it with --grant @workspace (the working directory) or --grant @write:/path (a granted file cannot be replaced); --deny-write wins",
			MCP:     "if it is needed, ask for @workspace (the working directory) or @write:/path (a granted file cannot be replaced) in permissions; denyWrite wins",
			Wrapper: "add the place to filesystem.allowWrite of the settings; denyWrite wins",
			E2B:     "write to /home/user or /tmp",
		},
	},
	types.HintLeftovers: {
		happened: leftovers,
		advice: [doors]string{
			API: "to keep one running, start it as a process",
			CLI: "to keep one running, use \"sandbox process start\"",
			MCP: "to keep one running, use process_start",
		},
	},
	types.HintRestarted: {
		happened: func(h Hint) string {
			return "the sandbox was started again from its home, because " + or(h.Reason, "it had ended") +
				": what ran in it is gone, and what was outside of the home and the mounts"
		},
	},
	types.HintOwnLocalhost: {
		happened: func(h Hint) string {
			return "the command found no server at localhost: " +
				or(h.Reason, "each container has a localhost of its own, and what else runs here is in another one")
		},
		advice: [doors]string{
			API: "to reach the ports of a process, ask for @process:NAME; to have all in one machine, register the sandbox with persistent, and start both with in: sandbox",
			CLI: "to reach the ports of a process, use --grant @process:NAME; to have all in one machine, start both with --persistent",
			MCP: "to reach the ports of a process, ask for @process:NAME, if it is granted here; whoever runs this server can have all in one machine with --persistent",
		},
	},
	types.HintOpenElsewhere: {
		happened: func(h Hint) string {
			who := "a process of another sandbox"
			if h.Process != "" {
				who = "the process " + h.Process
			}
			return h.Path + " changed while the command ran, and " + who +
				" has it open in another container, where locks of this one are not seen"
		},
		advice: [doors]string{
			API: "run commands that use it in the process's container: process: NAME",
			CLI: "run commands that use it in the process's container: sandbox process exec NAME -- …",
			MCP: "run commands that use it in the process's container: process: NAME",
		},
	},
	types.HintOutOfMemory: {happened: func(h Hint) string {
		return "out of memory: " + bound("this container may use", h) + ", its tmpfs included"
	}},
	types.HintOutOfProcesses: {happened: func(h Hint) string {
		return "out of processes: " + bound("this container may have", h)
	}},
	types.HintNoSpace: {
		happened: func(h Hint) string {
			text := "no space left in " + or(h.Path, "the sandbox")
			if h.Limit != "" {
				text += ": " + bound("it may hold", h)
			}
			return text
		},
		advice: [doors]string{
			API: "remove what is not needed, or point home to a directory on the disk that the call may write to",
			CLI: "remove what is not needed, or point --home to a directory on the disk that the call may write to",
			MCP: "remove what is not needed, or point home to a directory on the disk that the call may write to",
		},
	},
}

// inside is the advice for a command inside its persistent sandbox, where the registration says what
// it may do.
var inside = map[types.HintKind][doors]string{
	types.HintNoNetwork: {
		API: "if it is needed, register the sandbox with permissions.network, and names in allowedDomains or presets in packageManagers",
		CLI: "if it is needed, allow names with --allow-domain, or a language's registries with --package-manager",
		MCP: "if it is needed, whoever runs this server can allow names with --allow-domain or --package-manager",
	},
	types.HintReadOnly: {
		API: "if it is needed, register the sandbox with a writeDirs that holds it",
		CLI: "--grant @write:/path is for another machine, which may write there",
		MCP: "if it is needed, whoever runs this server can let it with --grant @write:/path",
	},
	types.HintNoSpace: {
		API: "remove what is not needed", CLI: "remove what is not needed",
		MCP: "remove what is not needed",
	},
}

// Say returns hints with their messages in a door's words; never nil. A kind that is not known here
// keeps the message that came with it.
func Say(door Door, list []Hint) []Hint {
	said := make([]Hint, len(list))
	for i, h := range list {
		if k, known := kinds[h.Kind]; known {
			h.Message = k.happened(h)
			advice := k.advice[door]
			if other, is := inside[h.Kind]; is && h.In == types.InSandbox {
				advice = other[door]
			}
			switch {
			case h.In == types.InProcess && advice != "" && h.Kind != types.HintNoSpace:
				advice = "it has what the process has: if more is needed, start the process with it"
			case h.Kind == types.HintOwnLocalhost && h.Reason != "":
				advice = "" // it has asked for @process already
			case h.Kind == types.HintOpenElsewhere && h.Process == "":
				advice = ""
			case h.Kind == types.HintOpenElsewhere:
				advice = strings.ReplaceAll(advice, "NAME", h.Process)
			case h.Kind != types.HintReadOnly:
			case inImage(h.Path):
				advice = "no command can change the image: write to the home or to /tmp"
			case isDenied(h.Path):
				h.Message = "the command may neither read nor write " + h.Path
				advice = "it is on the deny list, which no grant opens: put it elsewhere"
			}
			if h.Kind == types.HintNoSpace && h.Limit == "" {
				advice = "" // it is on the disk
			}
			if advice != "" {
				h.Message += "; " + advice
			}
		}
		said[i] = h
	}
	return said
}

// Leftovers returns the hint about processes that were ended with their command: the command lines
// of some, and how many more there were.
func Leftovers(commands []string, more int) []Hint {
	count := len(commands) + more
	if count == 0 {
		return nil
	}
	return []Hint{{Kind: types.HintLeftovers, Commands: commands, Count: count}}
}

// leftovers tells of processes that were ended with their command.
func leftovers(h Hint) string {
	text := "1 background process was ended"
	if h.Count != 1 {
		text = fmt.Sprintf("%d background processes were ended", h.Count)
	}
	if len(h.Commands) == 0 {
		return text
	}
	text += ": " + strings.Join(h.Commands, ", ")
	if h.Count > len(h.Commands) {
		text += ", …"
	}
	return text
}

// bound tells a limit: what it is and which setting it is.
func bound(what string, h Hint) string {
	text := what + " " + or(h.Value, "no more")
	if h.Limit != "" {
		text += " (" + h.Limit + ")"
	}
	return text
}

// inImage reports whether a path is of the image, which no grant opens.
func inImage(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return slices.Contains([]string{"bin", "boot", "etc", "lib", "lib64", "opt", "root", "sbin",
		"usr", "var"}, first)
}

// isDenied reports whether a path of the home is on the deny list.
func isDenied(name string) bool {
	name = path.Clean(name)
	return slices.ContainsFunc(policy.DeniedInHome(), func(row string) bool {
		return pathmap.Within(name, path.Join(policy.Home.String(), row))
	})
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
