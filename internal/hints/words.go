package hints

import (
	"bytes"
	"regexp"

	"github.com/daycare-run/sandbox/api/types"
)

// Of returns what the end of a failed command's output says, for a command that had a network or
// not. Only the programs know what they tried, so their words tell; whoever fakes them misleads
// nobody but the caller that runs him. A program that tries again and again until its time is up
// has said nothing yet: then nothing tells whether it wanted a network, and the hint says only that
// there was none.
func Of(output []byte, network, timedOut bool) (list []Hint) {
	lower := bytes.ToLower(output)
	if !network && (timedOut || hasAny(lower, unreached)) {
		list = append(list, Hint{Kind: types.HintNoNetwork})
	}
	if i := bytes.LastIndex(lower, []byte(readOnly)); i >= 0 {
		list = append(list, Hint{Kind: types.HintReadOnly, Path: pathAt(lower, output, i)})
	} else if i := bytes.LastIndex(lower, []byte(denied)); i >= 0 {
		if at := pathAt(lower, output, i); isDenied(at) {
			list = append(list, Hint{Kind: types.HintReadOnly, Path: at})
		}
	}
	if i := max(bytes.LastIndex(lower, []byte("no space left on device")),
		bytes.LastIndex(lower, []byte("enospc"))); i >= 0 {
		list = append(list, Hint{Kind: types.HintNoSpace, Path: pathAt(lower, output, i)})
	}
	return list
}

// atLocalhost finds what programs say that connect to a port of localhost at which nobody listens,
// in lower case.
var atLocalhost = regexp.MustCompile(
	`(localhost|127\.0\.0\.1|\[?::1\]?)[^\n]*(refused|couldn't connect)|` +
		`(refused|failed to connect|could not connect)[^\n]*(localhost|127\.0\.0\.1|::1)`)

// OwnLocalhost returns a hint if the end of a failed command's output says that no server was found
// at localhost. Whether there is one elsewhere is for the caller to know, and for what reason the
// call does not find it although it reaches processes.
func OwnLocalhost(output []byte, reason string) []Hint {
	if !atLocalhost.Match(bytes.ToLower(output)) {
		return nil
	}
	return []Hint{{Kind: types.HintOwnLocalhost, Reason: reason}}
}

// unreached is what programs and libraries say, in lower case, when there is no network.
var unreached = []string{
	"could not resolve", "couldn't resolve", "unable to resolve", "cannot resolve",
	"could not be resolved", "temporary failure", "name or service not known",
	"nodename nor servname", "no address associated with hostname", "unknown host", "unknownhost",
	"failed to lookup address", "name resolution", "eai_again", "enotfound", "getaddrinfo",
	"no such host", "dial tcp: lookup ", "bad address '", "network is unreachable",
	"network unreachable", "enetunreach", "(from versions: none)", "dns error",
}

// readOnly is what the C library, Node and Go say, in lower case.
const readOnly = "read-only file system"

// denied is what they say where gVisor has what hides another directory, as that is root's.
const denied = "permission denied"

// noProcess is what shells and languages say when the kernel starts no further process or thread
// for them.
var noProcess = regexp.MustCompile(
	`(?i)(fork|clone|spawn|thread)[^\n]*(resource temporarily unavailable|eagain)|` +
		`fork: retry:|fork_exec[\s\S]*errno 11\b|can(not|'t) (fork|start new thread)|unable to create (new )?native thread|failed to create new os thread`)

// NoProcess reports whether the end of a failed command's output says that no more processes or
// threads could be started.
func NoProcess(output []byte) bool { return noProcess.Match(output) }

// absolute finds absolute paths, which are no ends of relative ones.
var absolute = regexp.MustCompile(`(?:^|[\s'"‘’:;,=(\[])(/[^\s'"‘’:;,)\]]+)`)

// pathAt returns the last absolute path in the line at i; "" if there is none. lower has the line's
// bytes wherever output has, unless a letter's lower case has another length.
func pathAt(lower, output []byte, i int) string {
	if len(lower) != len(output) {
		output = lower
	}
	from := bytes.LastIndexByte(output[:i], '\n') + 1
	line, _, _ := bytes.Cut(output[from:], []byte("\n"))
	all := absolute.FindAllSubmatch(line, -1)
	if len(all) == 0 {
		return ""
	}
	return string(all[len(all)-1][1])
}

func hasAny(text []byte, words []string) bool {
	for _, word := range words {
		if bytes.Contains(text, []byte(word)) {
			return true
		}
	}
	return false
}
