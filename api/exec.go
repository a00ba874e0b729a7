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
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// ndjson is the media type that asks for a stream of JSON events; types.Frames asks for one in
// which output is not JSON.
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
		return fmt.Errorf("tty is for an attached exec, GET …/exec as a WebSocket: %w",
			cerrdefs.ErrInvalidArgument)
	}
	accept := req.Header.Get("Accept")
	streams := strings.Contains(accept, ndjson) || strings.Contains(accept, types.Frames)
	switch {
	case body.DetachOnDisconnect && streams:
		return s.streamDetached(w, req, r)
	case body.DetachOnDisconnect:
		return fmt.Errorf(
			"detachOnDisconnect is for a streamed exec, with Accept: %s, or an attached one: %w",
			ndjson, cerrdefs.ErrInvalidArgument)
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

// request converts an exec's JSON to the facade's request. Its Stdin is nil if none is given, or an
// empty one.
func request(body sentExec) (sandbox.Request, error) {
	r := sandbox.Request{
		Command: body.Command, Argv: body.Argv, Login: body.Login, Confinement: sandbox.Confinement{
			Permissions: body.Permissions, AllowedDomains: body.AllowedDomains,
			PackageManagers: body.PackageManagers,
			Restrictions:    sandbox.Restrictions(body.Restrictions), Home: body.Home,
		},
		InSandbox: body.In == types.InSandbox, Process: body.Process, Cwd: body.Cwd, Env: body.Env,
		Secrets: body.Secrets, OnlyIfRunning: body.OnlyIfRunning,
	}
	if err := checkIn(body.In); err != nil {
		return r, err
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

// checkIn refuses what is no container of a call.
func checkIn(in types.In) error {
	switch in {
	case "", types.InCall, types.InSandbox:
		return nil
	}
	return fmt.Errorf("in is %q, neither %q nor %q: %w", in, types.InCall, types.InSandbox,
		cerrdefs.ErrInvalidArgument)
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
		return nil, fmt.Errorf("stdinEncoding %q is not base64: %w", e.StdinEncoding,
			cerrdefs.ErrInvalidArgument)
	}
}

// givesStdin reports whether stdin is given, be it empty; it does not come in messages then.
func (e sentExec) givesStdin() bool { return e.Stdin != nil || e.StdinEncoding != types.Text }

// buffer answers with everything at the end, or with both ends of it. The output counts as the
// request's memory until the caller has read it. Output for which there is no room is dropped,
// because the command has already had its effects.
func (s *server) buffer(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	outputs := [2]kept{{limit: s.cfg.MaxOutput}, {limit: s.cfg.MaxOutput}}
	ended, err := s.service.Exec(req.Context(), req.PathValue("id"), r,
		func(stream session.Stream, data []byte) error {
			_, err := outputs[stream].Write(data)
			return err
		})
	if err != nil {
		return err
	}
	if ended.CommandFault != "" {
		fmt.Fprintln(&outputs[session.Stderr], ended.CommandFault)
	}
	told := struct { // the rest of a types.Output
		types.Result
		StdoutCut *types.Cut `json:"stdoutCut,omitempty"`
		StderrCut *types.Cut `json:"stderrCut,omitempty"`
	}{Result: result(ended)}
	stdout, stderr := largeText{name: "stdout", encoded: "stdoutEncoding"},
		largeText{name: "stderr", encoded: "stderrEncoding"}
	stdout.text, stdout.encoding, told.StdoutCut = outputs[session.Stdout].encoded()
	stderr.text, stderr.encoding, told.StderrCut = outputs[session.Stderr].encoded()
	if s.memory.take(len(stdout.text)+len(stderr.text)) != nil {
		stdout, stderr = largeText{name: "stdout"}, largeText{name: "stderr"}
		told.StdoutCut, told.StderrCut = outputs[session.Stdout].all(),
			outputs[session.Stderr].all()
	}
	told.Truncated = told.StdoutCut != nil || told.StderrCut != nil
	s.answerTexts(w, []largeText{stdout, stderr}, told)
	return nil
}
