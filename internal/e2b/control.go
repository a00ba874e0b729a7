package e2b

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/internal/strictjson"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// read reads a body, which can then be read again. It refuses unknown fields: one might be a limit
// that nobody would then keep.
func read(req *http.Request, into any) error {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		if isTooLarge(err) || cerrdefs.IsResourceExhausted(err) {
			return err
		}
		return invalid("the body was cut short: %v", err)
	}
	k, is := req.Body.(*kept) // what is read again counts once
	req.Body = io.NopCloser(bytes.NewReader(text))
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	values, err := strictjson.Count(text, "the body")
	if err != nil {
		return invalid("%v", err)
	}
	if is {
		if err := k.take(values * strictjson.ValueBytes); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(text, into, json.RejectUnknownMembers(true)); err != nil {
		return named("", err)
	}
	return nil
}

// named returns an error that says which field of a body is wrong.
func named(in string, err error) error {
	wrong, is := errors.AsType[*json.SemanticError](err)
	if !is {
		return invalid("the body is no JSON: %v", err)
	}
	field := strings.ReplaceAll(string(wrong.JSONPointer), "/", ".")
	if in == "" {
		field = strings.TrimPrefix(field, ".")
	}
	if errors.Is(err, json.ErrUnknownName) {
		return invalid("%.200s is not known here, so it cannot be honored: leave it out", in+field)
	}
	return invalid("%.200s has a value of the wrong kind", in+field)
}

// How long a sandbox lives, in seconds: by default, as with E2B, and at most.
const (
	usualTimeout   = 300
	usualTimeoutV1 = 15 // of calls by the older routes
	maxTimeout     = 30 * 24 * 3600
)

// deadline reads a timeout in seconds from now, of a call.
func deadline(req *http.Request, seconds *int64) (time.Time, error) {
	n := int64(usualTimeoutV1)
	if strings.HasPrefix(req.URL.Path, "/v2/") {
		n = usualTimeout
	}
	if seconds != nil {
		n = *seconds
	}
	if n < 0 || n > maxTimeout {
		return time.Time{}, invalid("timeout %d is not from 0 to %d seconds", n, maxTimeout)
	}
	return time.Now().UTC().Add(time.Duration(n) * time.Second), nil
}

// movedBody is what a call says that moves the deadline of a sandbox.
type movedBody struct {
	Timeout *int64 `json:"timeout"`
	// AutoPause is sent by older clients when they resume.
	AutoPause *bool `json:"autoPause"`
	Memory    *bool `json:"memory"`
}

// moved reads the new deadline that a call gives a sandbox. Whoever resumes a paused one may say
// what is to be in its memory.
func moved(req *http.Request, paused bool) (time.Time, error) {
	var body movedBody
	if err := read(req, &body); err != nil {
		return time.Time{}, err
	}
	if paused && body.Memory != nil && !*body.Memory {
		return time.Time{},
			invalid("memory: false is not possible: a sandbox that is resumed goes on with what is in its memory")
	}
	return deadline(req, body.Timeout)
}

// owned makes a handler of a function about a sandbox of the caller's, which returns the status and
// the body, if any, to answer.
func owned(do func(controlCall, *persistent.Sandbox, *http.Request) (status int,
	body any, err error)) handlerOfControl {
	return func(c controlCall, w http.ResponseWriter, req *http.Request) error {
		b, err := c.server.cfg.Sandboxes.Find(c.Token, req.PathValue("id"))
		if err != nil {
			return err
		}
		status, body, err := do(c, b, req)
		switch {
		case err != nil:
			return err
		case status == http.StatusNoContent:
			w.WriteHeader(status)
		default:
			answer(w, status, body)
		}
		return nil
	}
}

func (c controlCall) get(b *persistent.Sandbox, _ *http.Request) (int, any, error) {
	i := b.Info()
	return http.StatusOK, c.detail(i), isThere(i)
}

// isThere returns an error for a sandbox that has ended by itself. For clients it is gone; its rest
// is being removed.
func isThere(i persistent.Info) error {
	if i.State == persistent.StateEnded {
		return notFound("the sandbox %q has ended: its container was lost", i.ID)
	}
	return nil
}

func (c controlCall) kill(b *persistent.Sandbox, req *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, b.Kill(req.Context())
}

func (c controlCall) connect(b *persistent.Sandbox,
	req *http.Request) (int, any, error) {
	i := b.Info()
	at, err := moved(req, i.State == persistent.StatePaused)
	if err != nil {
		return 0, nil, err
	}
	if err := isThere(i); err != nil {
		return 0, nil, err
	}
	status := http.StatusOK
	if i.State == persistent.StatePaused {
		status = http.StatusCreated
	}
	err = b.Connect(req.Context(), at)
	return status, c.made(b.Info()), err
}

func (c controlCall) timeout(b *persistent.Sandbox,
	req *http.Request) (int, any, error) {
	at, err := moved(req, false)
	if err == nil {
		err = b.SetDeadline(at)
	}
	return http.StatusNoContent, nil, err
}

func (c controlCall) pause(b *persistent.Sandbox, req *http.Request) (int, any, error) {
	var body struct {
		Memory *bool `json:"memory"`
	}
	if err := read(req, &body); err != nil {
		return 0, nil, err
	}
	if body.Memory != nil && !*body.Memory {
		return 0, nil,
			invalid("memory: false is not possible: a sandbox that is paused keeps what is in its memory")
	}
	return http.StatusNoContent, nil, b.Pause(req.Context())
}

// later answers for what E2B has and this service lacks; laterOwned does so only for a sandbox of
// the caller's.
func later(what string) handlerOfControl {
	return func(controlCall, http.ResponseWriter, *http.Request) error {
		return unimplemented{what}
	}
}

func laterOwned(what string) handlerOfControl {
	return owned(func(controlCall, *persistent.Sandbox, *http.Request) (int, any, error) {
		return 0, nil, unimplemented{what}
	})
}

func laterCall(what string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		failConnect(w, req, unimplemented{what})
	})
}
