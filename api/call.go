package api

import (
	"errors"
	"net/http"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/felixge/httpsnoop"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Call is the event of an answered request. It contains nothing that the request carried: no query,
// no header, no body.
type Call struct {
	// Route is the pattern of the route, such as "GET /v1/health"; "/" for a path without a route.
	Route string
	// Status is 200 for every success.
	Status int
	// Kind is the kind of the error that was sent, including at the end of a stream; empty for
	// none.
	Kind types.Kind
	// Quota is the quota that was exceeded; nil for none.
	Quota *quota.Exceeded
	Took  time.Duration

	// For operators.
	method, caller, sandbox string
	answered                int // the status itself
	bytes                   int64
	fault                   error // an error of the service itself; nil for none
	shown                   bool  // at level info
}

// tell publishes the event of an answered request.
func (m *middleware) tell(req *http.Request, r route, caller access.Caller,
	answer httpsnoop.Metrics, err error) {
	c := Call{
		Route: r.pattern, Status: http.StatusOK, Took: answer.Duration,
		method: known(req.Method), caller: caller.Name, answered: answer.Code,
		bytes: answer.Written, shown: m.cfg.LogCalls != nil && m.cfg.LogCalls(),
	}
	if id, notOne := ids.ParseSandbox(req.PathValue("id")); notOne == nil {
		c.sandbox = id.String()
	}
	if err != nil {
		failure, status := classify(err)
		c.Kind = failure.Kind
		_, told := errors.AsType[reportedError](err)
		if !told || answer.Code >= http.StatusBadRequest { // otherwise a stream began well
			c.Status = status
		}
		c.Quota, _ = errors.AsType[*quota.Exceeded](err)
		if status >= http.StatusInternalServerError && !cerrdefs.IsUnavailable(err) &&
			!isGone(err) {
			c.fault = err
		}
	}
	stream, _ := m.service.Events()
	stream.Tell(req.Context(), "", c)
}

// Line implements events.Line. It writes an error's text only if the error is the service's own
// fault.
func (c Call) Line(log *zerolog.Logger, _ string) {
	line := log.Debug()
	if c.shown {
		line = log.Info()
	}
	line = line.Str("method", c.method).Str("route", c.Route).Int("status", c.answered).
		Int64("bytes", c.bytes).Dur("took", c.Took)
	events.Texts(line, "caller", c.caller, "sandbox", c.sandbox, "kind", string(c.Kind)).Msg("call")
	if c.fault != nil {
		log.Warn().Str("route", c.Route).Err(c.fault).Msg("a call has failed")
	}
}

// known returns a standard method as it is, and "other" for a made-up one.
func known(method string) string {
	if slices.Contains(methods, method) {
		return method
	}
	return "other"
}
