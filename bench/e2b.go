package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// foreign has the times of the stock client of E2B and of our own.
type foreign struct {
	// run is commands.run("true"), and login is the same by our client, in a login shell, which run
	// uses, too.
	run, login sample
	// create is the creation of a sandbox and its first command.
	create sample
}

const (
	e2bKey = "bench-0123456789abcdef0123456789abcdef"

	// e2bOverTarget is how much longer than by our client a command may take by the stock client, and
	// e2bCreateTarget is for the creation of a sandbox with its first command.
	e2bOverTarget, e2bCreateTarget = 3 * time.Millisecond, 60 * time.Millisecond
)

//go:embed e2b.mjs
var e2bProgram []byte

// measureE2B starts a service that serves E2B's clients, and has both clients call it.
func (l *lab) measureE2B(ctx context.Context, runtime string) (found foreign, err error) {
	dir, err := l.e2bClients(ctx)
	if err != nil {
		return found, err
	}
	tokens := filepath.Join(l.dir, "e2b-tokens.json")
	if err := os.WriteFile(tokens, []byte(`{"tokens":[{"name":"bench","token":"`+e2bKey+`"}]}`), 0o600); err != nil {
		return found, err
	}
	addr, err := freePort(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return found, err
	}
	settings := append([]string{"SANDBOXD_E2B_LISTEN=" + addr.String(), "SANDBOXD_TCP_TOKENS_FILE=" + tokens}, poolSettings...)
	err = l.withService(ctx, runtime, "e2b", settings, func(s *service) error {
		cmd := exec.CommandContext(ctx, "node", "main.mjs", dir, s.path("socket"), strconv.Itoa(s.settings.warm), strconv.Itoa(waiting))
		cmd.Dir = dir
		url := "http://" + addr.String()
		cmd.Env = append(foreignVariables(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY=e2b_"+e2bKey)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("the clients' program: %w\n%s", err, said.Bytes())
		}
		found, err = readForeign(out)
		return err
	})
	return found, err
}

// readForeign reads what e2b.mjs prints, in milliseconds.
func readForeign(text []byte) (found foreign, _ error) {
	var printed map[string][]float64
	if err := json.Unmarshal(text, &printed); err != nil {
		return found, fmt.Errorf("the clients' program printed %q: %w", text, err)
	}
	for name, into := range map[string]*sample{"run": &found.run, "login": &found.login, "create": &found.create} {
		for _, one := range printed[name] {
			*into = append(*into, time.Duration(one*float64(time.Millisecond)))
		}
	}
	return found, nil
}

// e2bClients returns a folder with the stock client from npm and our own client, built.
func (l *lab) e2bClients(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(l.dir, "e2b")
	if _, err := os.Stat(filepath.Join(dir, "main.mjs")); err == nil {
		return dir, nil
	}
	own := filepath.Join(dir, "typescript")
	if err := os.CopyFS(own, os.DirFS("../clients/typescript")); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("../e2e/e2b", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	for _, step := range []struct {
		in   string
		argv []string
	}{{dir, []string{"npm", "ci", "--ignore-scripts"}}, {own, []string{"npm", "ci", "--ignore-scripts"}}, {own, []string{"npm", "run", "build"}}} {
		cmd := exec.CommandContext(ctx, step.argv[0], step.argv[1:]...)
		cmd.Dir = step.in
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot prepare the clients: %v: %w\n%s", step.argv, err, out)
		}
	}
	return dir, os.WriteFile(filepath.Join(dir, "main.mjs"), e2bProgram, 0o600)
}

func e2bSection(f findings) section {
	s := section{
		title: "The stock client of E2B",
		how: fmt.Sprintf("npm's `e2b` and our own TypeScript client call one service, by turns, each call 40 ms after the last:\n"+
			"`commands.run(\"true\")`, and our `exec` of `true` in a login shell, as `commands.run` has one, with a network as the\n"+
			"stock client's sandbox has it. Each way has a container of its own, which has rested meanwhile, so that the next\n"+
			"command's shell waits. Create: `Sandbox.create()` and its first `commands.run(\"true\")`, one after the other, of %d\n"+
			"for whom a container waits.", waiting),
		head: timesHead("runtime", "what"),
	}
	for _, r := range f.runtimes {
		x := r.e2b
		s.times(x.run, r.runtime, "commands.run")
		s.times(x.login, r.runtime, "our exec of a login shell")
		s.times(x.create, r.runtime, "create and first command")
		s.judge(
			atMost(r.runtime, "p50 of commands.run less our exec of a login shell", apart(x.run, x.login), e2bOverTarget, ms),
			atMost(r.runtime, "p50 of create and first command", x.create.median(), e2bCreateTarget, ms))
	}
	return s
}
