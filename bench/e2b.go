package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// foreign has the times of the stock client of E2B and of our own.
type foreign struct {
	// run is commands.run("true"), exec is the same by our client, and login is exec with a login
	// shell, which run uses, too.
	run, exec, login sample
	// answered and quiet are run and login with a server that runs nothing: each client's own time.
	answered, quiet sample
	// create is the creation of a sandbox and its first command.
	create sample
	// write and read transfer a file of e2bBytes; upload and download do the same by our client,
	// over TCP as well.
	write, read, upload, download sample
	// discarded and supplied are write and read with a server that does nothing else: the stock
	// client's own time.
	discarded, supplied sample
}

const (
	e2bBytes     = 100e6
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
	for _, address := range []*string{&l.e2bAddress, &l.tcpAddress} {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*address = free.Addr().String()
		if err := free.Close(); err != nil {
			return nil, err
		}
	}
	return append([]string{"SANDBOXD_E2B_LISTEN=" + l.e2bAddress, "SANDBOXD_TCP_LISTEN=" + l.tcpAddress, "SANDBOXD_TCP_TOKENS_FILE=" + tokens}, poolSettings...), nil
}

// idleServer serves both clients without sandboxes: commands end at once, written data is
// discarded, and read data is in memory.
func idleServer() *httptest.Server {
	data := make([]byte, e2bBytes)
	answer := func(text string, status int) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			buffer := make([]byte, 256<<10)
			for err := error(nil); err == nil; {
				_, err = req.Body.Read(buffer)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		mux.Handle("POST "+path, answer(`{"sandboxID":"none","templateID":"base","clientID":"none","envdVersion":"0.6.1","envdAccessToken":"none"}`, http.StatusCreated))
	}
	mux.HandleFunc("POST /process.Process/Start", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "application/connect+json")
		for _, message := range []string{
			"\x00" + `{"event":{"start":{"pid":5}}}`, "\x00" + `{"event":{"end":{"exited":true,"status":"exit status 0"}}}`, "\x02{}",
		} {
			_, _ = w.Write(append([]byte{message[0], 0, 0, 0, byte(len(message) - 1)}, message[1:]...))
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.Handle("PUT /v1/sandboxes/{id}", answer(`{"id":"none","userId":"none","permissions":{}}`, http.StatusOK))
	mux.Handle("POST /v1/sandboxes/{id}/exec", answer(`{"stdout":"","stderr":"","exitCode":0,"signal":null,"failed":false,"cwd":"/home","timedOut":false,"truncated":false,"durationMs":1,"cold":false,"egress":[],"hints":[]}`, http.StatusOK))
	mux.Handle("POST /files", answer(`[{"name":"large","path":"/home/user/large","type":"file"}]`, http.StatusOK))
	mux.HandleFunc("GET /files", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(e2bBytes))
		_, _ = w.Write(data)
	})
	return httptest.NewServer(mux)
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
	idle := idleServer()
	defer idle.Close()
	cmd := exec.CommandContext(ctx, "node", "--expose-gc", "main.mjs", dir, s.path("socket"), "http://"+s.tcpAddress, idle.URL, strconv.Itoa(s.settings.warm), strconv.Itoa(e2bCreations), strconv.Itoa(e2bBytes))
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
	for name, into := range map[string]*sample{
		"run": &found.run, "answered": &found.answered, "quiet": &found.quiet, "exec": &found.exec, "login": &found.login, "create": &found.create,
		"discarded": &found.discarded, "supplied": &found.supplied, "write": &found.write, "read": &found.read, "upload": &found.upload, "download": &found.download,
	} {
		for _, one := range ms[name] {
			*into = append(*into, time.Duration(one*float64(time.Millisecond)))
		}
	}
	return nil
}
