package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/daycare-run/sandbox/api/types"
)

// Reattach connects to an exec with DetachOnDisconnect, replaces the caller attached to it, and
// returns when it ends, as Attach does. offset is how many bytes of output, of both streams
// together, the caller already has: later output that is still kept is written first. Without
// s.Stdin, stdin is left alone. The error is of kind notFound if there is no such exec, and of kind
// conflict if another caller has replaced this one.
func (c *Client) Reattach(ctx context.Context, id, execID string, offset int64,
	s Streams) (types.Result, error) {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	path := execPath(id, execID)
	if offset != 0 {
		path += "?offset=" + strconv.FormatInt(offset, 10)
	}
	a, err := c.dial(ctx, path, s)
	if err != nil {
		return types.Result{}, err
	}
	defer a.conn.CloseNow()
	if s.Stdin != nil {
		go a.feed(ctx, cut)
	}
	go a.relay(ctx)
	return a.receive(ctx)
}

// DetachedExecs lists the execs of the sandbox's user to which a caller can reattach, oldest first.
func (c *Client) DetachedExecs(ctx context.Context, id string) ([]types.DetachedExec, error) {
	list, err := ask[types.DetachedExecList](ctx, c, http.MethodGet, sandboxPath(id)+"/execs", nil)
	return list.Execs, err
}

// KillExec ends an exec with DetachOnDisconnect, and returns how it ended.
func (c *Client) KillExec(ctx context.Context, id, execID string) (types.DetachedExec, error) {
	return ask[types.DetachedExec](ctx, c, http.MethodPost, execPath(id, execID)+"/kill", nil)
}

func execPath(id, execID string) string {
	return sandboxPath(id) + "/execs/" + url.PathEscape(execID)
}
