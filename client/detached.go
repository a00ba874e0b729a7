package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/daycare-run/sandbox/api/types"
)

// Reattach comes back to an exec with DetachOnDisconnect, in the place of who is attached to it, and returns at
// its end, as Attach does. offset is how many bytes of output, of both streams together, the caller has had:
// what comes after them and is still kept is written first. Without s.Stdin, stdin is left as it is. The error
// is of kind notFound if there is no such exec, and of kind conflict if another has come in our place.
func (c *Client) Reattach(ctx context.Context, id, execID string, offset int64, s Streams) (types.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
		go a.feed(ctx)
	}
	go a.relay(ctx)
	return a.receive(ctx)
}

// DetachedExecs lists the execs of the sandbox's user to which one may come back, the oldest first.
func (c *Client) DetachedExecs(ctx context.Context, id string) ([]types.DetachedExec, error) {
	list, err := ask[types.DetachedExecList](ctx, c, http.MethodGet, sandboxPath(id)+"/execs", nil)
	return list.Execs, err
}

// KillExec ends an exec with DetachOnDisconnect, and returns how it has ended.
func (c *Client) KillExec(ctx context.Context, id, execID string) (types.DetachedExec, error) {
	return ask[types.DetachedExec](ctx, c, http.MethodPost, execPath(id, execID)+"/kill", nil)
}

func execPath(id, execID string) string { return sandboxPath(id) + "/execs/" + url.PathEscape(execID) }
