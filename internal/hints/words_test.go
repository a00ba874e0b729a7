package hints

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
)

func TestNoProcess(t *testing.T) {
	for output, want := range map[string]bool{
		"bash: fork: retry: Resource temporarily unavailable":                                             true,
		"    self.pid = _fork_exec(\n  ^^^\nBlockingIOError: [Errno 11] Resource temporarily unavailable": true,
		"/bin/sh: 1: Cannot fork":                                            true,
		"RuntimeError: can't start new thread":                               true,
		"Error: spawn /bin/sh EAGAIN":                                        true,
		"runtime: failed to create new OS thread (have 9 already; errno=11)": true,
		"java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory or process/resource li": true,
		"libgomp: Thread creation failed: Resource temporarily unavailable":                                         true,
		"read: Resource temporarily unavailable":                                                                    false,
		"the fork is new\nread: Resource temporarily unavailable":                                                   false,
		"": false,
	} {
		if NoProcess([]byte(output)) != want {
			t.Errorf("%s: %v", output, !want)
		}
	}
}

func TestOf(t *testing.T) {
	network, none := []Hint{{Kind: types.HintNoNetwork}}, []Hint(nil)
	place := func(path string) []Hint { return []Hint{{Kind: types.HintReadOnly, Path: path}} }
	for output, want := range map[string][]Hint{
		"fatal: unable to access 'https://a.org/': Could not resolve host: a.org":                                                                                  network,
		"npm error code EAI_AGAIN\nnpm error syscall getaddrinfo":                                                                                                  network,
		"ERROR: Could not find a version that satisfies the requirement six (from versions: none)\nERROR: No matching distribution found for six":                  network,
		"go: a.org/b@v1: Get \"https://proxy.golang.org/\": dial tcp: lookup proxy.golang.org on [::1]:53: dial udp [::1]:53: connect: cannot assign this address": network,
		"wget: bad address 'a.org'":                                                            network,
		"java.net.UnknownHostException: repo1.maven.org":                                       network,
		"connect: Network is unreachable":                                                      network,
		"FAIL: TestNetwork":                                                                    none,
		"make: *** [Makefile:2: all] Error 1":                                                  none,
		"bash: line 1: .git/HEAD: Read-only file system":                                       place(""),
		"touch: cannot touch 'notes.txt': Read-only file system":                               place(""),
		"bash: line 1: /home/Notes.txt: Read-only file system":                                 place("/home/Notes.txt"),
		"error: could not lock config file /home/.gitconfig: Read-only file system\nbye\n":     place("/home/.gitconfig"),
		"Error: EROFS: read-only file system, open '/home/a/b.js'\n    at Object.openSync (x)": place("/home/a/b.js"),
		"bash: line 1: /home/.ssh/id: Permission denied":                                       place("/home/.ssh/id"),
		"cat: /home/closed: Permission denied":                                                 none,
		"OSError: [Errno 30] Read-only file system: '/usr/lib/x'":                              place("/usr/lib/x"),
		"İ /home/A: Read-only file system":                                                     place("/home/a"), // a letter whose lower case is longer
		"dd: error writing '/tmp/x': No space left on device":                                  {{Kind: types.HintNoSpace, Path: "/tmp/x"}},
		"npm error code ENOSPC\nnpm error syscall write":                                       {{Kind: types.HintNoSpace}},
		"could not resolve host\n/x: read-only file system":                                    {{Kind: types.HintNoNetwork}, {Kind: types.HintReadOnly, Path: "/x"}},
	} {
		if diff := cmp.Diff(want, Of([]byte(output), false, false)); diff != "" {
			t.Errorf("%s:\n%s", output, diff)
		}
	}
	for _, timedOut := range []bool{false, true} {
		if got := Of([]byte("Could not resolve host: a.org"), true, timedOut); got != nil {
			t.Errorf("with a network: %v", got)
		}
	}
	if diff := cmp.Diff(network, Of(nil, false, true)); diff != "" {
		t.Errorf("silent until its time was up:\n%s", diff)
	}
}

func TestOwnLocalhost(t *testing.T) {
	for text, want := range map[string]bool{
		"curl: (7) Failed to connect to localhost port 8000 after 0 ms: Couldn't connect to server":     true,
		"Error: connect ECONNREFUSED 127.0.0.1:5173":                                                    true,
		"dial tcp [::1]:8080: connect: connection refused":                                              true,
		"requests: HTTPConnectionPool(host='localhost', port=8000): [Errno 111] Connection refused":     true,
		"curl: (7) Failed to connect to example.org port 443: Connection refused\nserving on localhost": false,
		"listening at http://localhost:3000":                                                            false,
	} {
		if got := len(OwnLocalhost([]byte(text), "")) == 1; got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
