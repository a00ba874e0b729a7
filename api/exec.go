package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// ndjson is the media type that asks for a stream of JSON events; types.Frames asks for one in which output is not JSON.
const ndjson = "application/x-ndjson"

func (s *server) exec(w http.ResponseWriter, req *http.Request) error {
	var body sentExec
	if err := s.decode(req, &body); err != nil {
		return err
	}
	r, err := request(body)
	if err != nil {
		return err
	}
	if r.Terminal != nil {
		return fmt.Errorf("tty is for an attached exec, GET …/exec as a WebSocket: %w", cerrdefs.ErrInvalidArgument)
	}
	accept := req.Header.Get("Accept")
	streams := strings.Contains(accept, ndjson) || strings.Contains(accept, types.Frames)
	switch {
	case body.DetachOnDisconnect && streams:
		return s.streamDetached(w, req, r)
	case body.DetachOnDisconnect:
		return fmt.Errorf("detachOnDisconnect is for a streamed exec, with Accept: %s, or an attached one: %w", ndjson, cerrdefs.ErrInvalidArgument)
	case streams:
		return s.stream(w, req, r)
	}
	return s.buffer(w, req, r)
}

// sentExec is an Exec as a caller has sent it: a stdin that is given may be empty.
type sentExec struct {
	types.Exec
	Stdin *string `json:"stdin,omitempty"`
}

// request converts an exec's JSON to the facade's request. Its Stdin is nil if none is given, or an empty one.
func request(body sentExec) (sandbox.Request, error) {
	r := sandbox.Request{
		Command: body.Command, Argv: body.Argv, Login: body.Login, Confinement: sandbox.Confinement{
			Permissions: body.Permissions, AllowedDomains: body.AllowedDomains, PackageManagers: body.PackageManagers,
			Restrictions: process.Restrictions(body.Restrictions), Home: body.Home,
		},
		Cwd: body.Cwd, Env: body.Env, Secrets: body.Secrets, OnlyIfRunning: body.OnlyIfRunning,
	}
	if body.TimeoutMs != nil {
		// Clamped far beyond any limit, because a larger number would overflow.
		timeout := time.Duration(max(min(*body.TimeoutMs, 1<<40), -1<<40)) * time.Millisecond
		r.Timeout = &timeout
	}
	if body.TTY != nil {
		size, err := terminal(*body.TTY)
		if err != nil {
			return r, err
		}
		r.Terminal = &size
	}
	stdin, err := body.stdin()
	if len(stdin) > 0 { // otherwise /dev/null, from which programs tell that they have no input
		r.Stdin = bytes.NewReader(stdin)
	}
	return r, err
}

// stdin returns the stdin that is given.
func (e sentExec) stdin() ([]byte, error) {
	var given string
	if e.Stdin != nil {
		given = *e.Stdin
	}
	switch e.StdinEncoding {
	case types.Text:
		return []byte(given), nil
	case types.Base64:
		stdin, err := base64.StdEncoding.DecodeString(given)
		if err != nil {
			return nil, fmt.Errorf("stdin is not base64: %v: %w", err, cerrdefs.ErrInvalidArgument)
		}
		return stdin, nil
	default:
		return nil, fmt.Errorf("stdinEncoding %q is not base64: %w", e.StdinEncoding, cerrdefs.ErrInvalidArgument)
	}
}

// givesStdin reports whether stdin is given, be it empty; it does not come in messages then.
func (e sentExec) givesStdin() bool { return e.Stdin != nil || e.StdinEncoding != types.Text }

// buffer answers with everything at the end. The output counts as the request's memory until the caller has
// read it. Output for which there is no room is dropped, because the command has already had its effects.
func (s *server) buffer(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	r.MaxOutput = s.cfg.MaxOutput
	var outputs [2]bytes.Buffer
	ended, err := s.service.Exec(req.Context(), req.PathValue("id"), r, func(stream dockerexec.Stream, data []byte) error {
		outputs[stream].Write(data)
		return nil
	})
	if err != nil {
		return err
	}
	if ended.CommandFault != "" {
		fmt.Fprintln(&outputs[dockerexec.Stderr], ended.CommandFault)
	}
	text := func(stream dockerexec.Stream, name string) largeText {
		output := outputs[stream].Bytes()
		// The other stream may be the one that was truncated.
		text, encoding := encodeWhole(output, ended.Truncated && int64(len(output)) >= s.cfg.MaxOutput)
		return largeText{name, text, name + "Encoding", encoding}
	}
	stdout, stderr, told := text(dockerexec.Stdout, "stdout"), text(dockerexec.Stderr, "stderr"), result(ended)
	if s.memory.take(len(stdout.text)+len(stderr.text)) != nil {
		stdout, stderr, told.Truncated = largeText{name: "stdout"}, largeText{name: "stderr"}, true
	}
	s.answerTexts(w, []largeText{stdout, stderr}, told)
	return nil
}
