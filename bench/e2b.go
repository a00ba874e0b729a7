package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
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
	e2bCreations = waiting
	e2bKey       = "bench-0123456789abcdef0123456789abcdef"
)

//go:embed e2b.mjs
var e2bProgram []byte

// e2bSettings are the settings of a service that serves E2B's clients.
func (l *lab) e2bSettings() ([]string, error) {
	tokens := filepath.Join(l.dir, "e2b-tokens.json")
	text := `{"tokens":[{"name":"bench","token":"` + e2bKey + `"}]}`
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		return nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.e2bAddress = free.Addr().String()
	settings := append([]string{"SANDBOXD_E2B_LISTEN=" + l.e2bAddress, "SANDBOXD_TCP_TOKENS_FILE=" + tokens}, poolSettings...)
	return settings, free.Close()
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

func (s *service) measureE2B(ctx context.Context, found *foreign) error {
	dir, err := s.e2bClients(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "node", "main.mjs", dir, s.path("socket"), strconv.Itoa(s.settings.warm), strconv.Itoa(e2bCreations))
	cmd.Dir = dir
	url := "http://" + s.e2bAddress
	cmd.Env = append(foreignVariables(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY=e2b_"+e2bKey)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the clients' program: %w\n%s", err, said.Bytes())
	}
	var ms map[string][]float64
	if err := json.Unmarshal(out, &ms); err != nil {
		return fmt.Errorf("the clients' program printed %q: %w", out, err)
	}
	for name, into := range map[string]*sample{"run": &found.run, "login": &found.login, "create": &found.create} {
		for _, one := range ms[name] {
			*into = append(*into, time.Duration(one*float64(time.Millisecond)))
		}
	}
	return nil
}
