package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/sandbox"
)

// ndjson is the media type that asks for a stream of events.
const ndjson = "application/x-ndjson"

func (s *server) exec(w http.ResponseWriter, req *http.Request) error {
	var body apitypes.Exec
	if err := decode(req, &body); err != nil {
		return err
	}
	r, err := request(body)
	if err != nil {
		return err
	}
	if strings.Contains(req.Header.Get("Accept"), ndjson) {
		return s.stream(w, req, r)
	}
	return s.buffer(w, req, r)
}

// request turns an exec's JSON into the facade's request.
func request(body apitypes.Exec) (sandbox.Request, error) {
	r := sandbox.Request{
		Command: body.Command, Argv: body.Argv, Login: body.Login, Permissions: body.Permissions,
		AllowedDomains: body.AllowedDomains, PackageManagers: body.PackageManagers,
		Home: body.Home, Cwd: body.Cwd, Env: body.Env, Secrets: body.Secrets,
	}
	if body.TimeoutMs != nil {
		// Beyond any limit is far enough: a number further out would overflow.
		timeout := time.Duration(max(min(*body.TimeoutMs, 1<<40), -1<<40)) * time.Millisecond
		r.Timeout = &timeout
	}
	switch body.StdinEncoding {
	case apitypes.Text:
		if body.Stdin != "" {
			r.Stdin = strings.NewReader(body.Stdin)
		}
	case apitypes.Base64:
		stdin, err := base64.StdEncoding.DecodeString(body.Stdin)
		if err != nil {
			return r, fmt.Errorf("stdin is not base64: %v: %w", err, cerrdefs.ErrInvalidArgument)
		}
		r.Stdin = bytes.NewReader(stdin)
	default:
		return r, fmt.Errorf("stdinEncoding %q is not base64: %w", body.StdinEncoding, cerrdefs.ErrInvalidArgument)
	}
	return r, nil
}

// buffer answers with everything at the end.
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
	answer := apitypes.Output{Result: result(ended)}
	encode := func(stream dockerexec.Stream) (string, apitypes.Encoding) {
		output := outputs[stream].Bytes()
		// The other stream may be the one that was cut.
		return encodeWhole(output, ended.Truncated && int64(len(output)) >= s.cfg.MaxOutput)
	}
	answer.Stdout, answer.StdoutEncoding = encode(dockerexec.Stdout)
	answer.Stderr, answer.StderrEncoding = encode(dockerexec.Stderr)
	s.answer(w, http.StatusOK, answer)
	return nil
}

// stream answers with events as they come. A fault before the command starts is an ordinary error.
func (s *server) stream(w http.ResponseWriter, req *http.Request, r sandbox.Request) error {
	flusher := http.NewResponseController(w)
	started := false
	send := func(e apitypes.Event) error {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("cannot encode an event: %w", err)
		}
		if !started {
			started = true
			w.Header().Set("Content-Type", ndjson)
			w.WriteHeader(http.StatusOK)
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
		return flusher.Flush()
	}
	r.Started = func() { _ = send(apitypes.Event{Type: apitypes.EventStart}) }
	var texts [2]textStream
	output := func(stream dockerexec.Stream, data []byte) error {
		return sendPart(send, stream, texts[stream].next(data))
	}
	ended, err := s.service.Exec(req.Context(), req.PathValue("id"), r, output)
	for stream := range texts {
		if rest := texts[stream].rest; len(rest) > 0 && err == nil {
			err = sendPart(send, dockerexec.Stream(stream), rest)
		}
	}
	if err == nil && ended.CommandFault != "" {
		err = sendPart(send, dockerexec.Stderr, []byte(ended.CommandFault+"\n"))
	}
	if err != nil && !started {
		return err
	}
	if err != nil {
		failure, _ := classify(err)
		_ = send(apitypes.Event{Type: apitypes.EventError, Error: &failure})
		return nil
	}
	exit := result(ended)
	_ = send(apitypes.Event{Type: apitypes.EventExit, Result: &exit})
	return nil
}

func sendPart(send func(apitypes.Event) error, stream dockerexec.Stream, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	event := apitypes.Event{Type: apitypes.EventStdout}
	if stream == dockerexec.Stderr {
		event.Type = apitypes.EventStderr
	}
	event.Data, event.Encoding = encodePart(data)
	return send(event)
}
