package e2e

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// The programs of docs/image.md are there, and the usual ways of installing work without root, into the home. The packages are
// made here, so no registry is asked.
func TestTheImageInstallsIntoTheHome(t *testing.T) {
	steps := []struct{ name, command, want string }{
		{"programs", "for p in " + imagePrograms(t) + `; do
			command -v $p > /dev/null || echo "$p is missing"; done; python3 -c 'import ensurepip, venv'`, ""},
		{"Node is one that is maintained", "node --version | cut -d. -f1; npm --version | cut -d. -f1", "v24\n11\n"},
		{"npm", `mkdir -p ~/greet && cd ~/greet && echo '{"name":"greet","version":"1.0.0","bin":{"greet":"greet.js"}}' > package.json
			printf '#!/usr/bin/env node\nconsole.log("hi from npm")\n' > greet.js
			npm install --global --offline . > /dev/null && greet`, "hi from npm\n"},
		{"and in a login shell", `bash -lc greet`, "hi from npm\n"},
		{"pnpm", `mkdir -p ~/wave && cd ~/wave && echo '{"name":"wave","version":"1.0.0","bin":{"wave":"wave.js"}}' > package.json
			printf '#!/usr/bin/env node\nconsole.log("hi from pnpm")\n' > wave.js
			pnpm add --global --offline ~/wave > /dev/null && wave`, "hi from pnpm\n"},
		{"pip", `mkdir -p ~/nod && cd ~/nod && echo 'def main(): print("hi from pip")' > nod.py
			echo 'from setuptools import setup; setup(name="nod", py_modules=["nod"], entry_points={"console_scripts": ["nod=nod:main"]})' > setup.py
			pip install --quiet --no-index --no-build-isolation . && nod`, "hi from pip\n"},
		{"a native module", `mkdir -p ~/native && cd ~/native && echo '{"name":"native","version":"1.0.0"}' > package.json
			echo '{"targets":[{"target_name":"native","sources":["native.c"]}]}' > binding.gyp
			printf '#include <node_api.h>\nNAPI_MODULE_INIT() { return exports; }\n' > native.c
			npm install --offline > /dev/null 2>&1 && node -p 'typeof require("./build/Release/native.node")'`, "object\n"},
		{"the image's programs come first", `printf '#!/bin/sh\necho mine\n' > ~/.local/bin/curl && chmod 755 ~/.local/bin/curl && command -v curl; bash -lc 'command -v curl'`,
			"/usr/bin/curl\n/usr/bin/curl\n"},
		{"ss", `python3 -m http.server 8123 --bind 127.0.0.1 > /dev/null 2>&1 &
			until ss -tln | grep -q 'LISTEN.*:8123'; do :; done; ss -tlnH 'sport = :8123' | grep -c LISTEN; kill $!`, "1\n"},
	}
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "image")
		for _, step := range steps {
			t.Run(strings.ReplaceAll(step.name, " ", "_"), func(t *testing.T) {
				out := l.run(t, "image", types.Exec{Permissions: workspace, Command: step.command, TimeoutMs: unhurried})
				if out.Stdout != step.want || out.Stderr != "" || out.ExitCode == nil || *out.ExitCode != 0 {
					t.Errorf("printed %q and %q, %s, want %q", out.Stdout, out.Stderr, exitText(out), step.want)
				}
			})
		}
	})
}

// imagePrograms are those that the table of docs/image.md names. venv is none.
func imagePrograms(t *testing.T) string {
	t.Helper()
	of := map[string]string{ // where the table names something else
		"coreutils": "stat", "findutils": "find", "diffutils": "diff", "ripgrep": "rg", "netcat": "nc", "openssh-client": "ssh scp", "dnsutils": "dig",
		"iproute2": "ip ss", "nano (`EDITOR`)": "nano $EDITOR", "Python 3.11": "python python3.11", "venv": "", "Node 24": "node npx",
	}
	_, table, _ := strings.Cut(readText(t, "../docs/image.md"), "\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var all []string
	for row := range strings.Lines(table) {
		for name := range strings.SplitSeq(strings.Split(row, "|")[2], ",") {
			program, is := of[strings.TrimSpace(name)]
			if !is {
				program = strings.TrimSpace(name)
			}
			all = append(all, program)
			delete(of, strings.TrimSpace(name))
		}
	}
	if len(of) > 0 {
		t.Fatalf("docs/image.md does not name %v, but %q", of, all)
	}
	return strings.Join(all, " ")
}
