package e2b

import (
	"context"
	"net/http"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// Router decides which of several hosts answers a call about a sandbox.
type Router interface {
	// Route is called once it is known that the caller may. If another host answers, it has done so
	// when Route returns, and done is nil. Otherwise this host is to answer, under ctx, and to call
	// done when it has. A call that only looks is this host's, too, if no host holds the sandbox.
	Route(w http.ResponseWriter, req *http.Request, caller access.Caller, id string,
		looks bool) (ctx context.Context, done func(), err error)
	// Await waits until this host knows all that was known anywhere of a sandbox.
	Await(ctx context.Context, id string) error
}

// Entry routes callers' calls. forward.Entry is one.
type Entry interface {
	Router
	// Names returns the names of all sandboxes. When it returns, this host knows all about them.
	Names(ctx context.Context) (map[string]bool, error)
}

// Inbound routes the calls that other hosts send on. forward.Inbound is one.
type Inbound interface {
	Router
	// Sender returns the caller of such a call and its sandbox, as the other host has established
	// them; for a call into a sandbox the caller is the sandbox's owner.
	Sender(*http.Request) (caller access.Caller, id string, err error)
}

// Cluster is what the surface needs where there are several hosts. Both fields must be set.
type Cluster struct {
	Entry Entry
	Sent  Inbound
}

// Surface answers callers; its Sent answers the calls that other hosts send on, and is nil if there
// is one host.
type Surface struct {
	http.Handler
	Sent http.Handler
}

// sent is what another host says about a call that it has sent on. It is not taken from what the
// caller wrote: a caller may even have a header dropped on the way between hosts, by naming it in
// Connection.
type sent struct {
	access.Caller
	id string // of the sandbox
}

type sentKey struct{}

// sentBy returns what another host says about a call, if one has sent it on.
func sentBy(ctx context.Context) (sent, bool) {
	said, is := ctx.Value(sentKey{}).(sent)
	return said, is
}

// sent answers calls that other hosts send on. They have identified the caller; the key is that of
// this host's file of tokens.
func (s *server) sent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		caller, id, err := s.cfg.Cluster.Sent.Sender(req)
		if err != nil {
			fail(w, err)
			return
		}
		known, is := s.cfg.Callers.Tokens.Named(caller.Name)
		if !is {
			fail(w, errs.Unauthenticated(
				"the host that holds the sandbox does not know this key: tcp.tokensFile has to be the same on all hosts"))
			return
		}
		next.ServeHTTP(w,
			req.WithContext(context.WithValue(req.Context(), sentKey{}, sent{known, id})))
	})
}

// route lets the right host answer a call about a sandbox; done is nil if another host has.
func (s *server) route(w http.ResponseWriter, req *http.Request, caller access.Caller, id string,
	looks bool) (_ *http.Request, done func(), err error) {
	if s.cfg.Cluster == nil {
		return req, func() {}, nil
	}
	route := s.cfg.Cluster.Entry.Route
	if _, is := sentBy(req.Context()); is {
		route = s.cfg.Cluster.Sent.Route
	}
	ctx, done, err := route(w, req, caller, id, looks)
	if err != nil || done == nil {
		return nil, nil, err
	}
	return req.WithContext(ctx), done, nil
}

// known waits for what other hosts have recorded of a sandbox that was not found here, as err says.
func (s *server) known(ctx context.Context, id string, err error) error {
	if _, sent := sentBy(ctx); s.cfg.Cluster == nil || sent || !cerrdefs.IsNotFound(err) {
		return err
	}
	return s.cfg.Cluster.Entry.Await(ctx, id)
}

// target returns the sandbox that a call of the control plane is about; empty for none. A sandbox
// that is to be created gets its id before it is known which host creates it, and only if the call
// is in order: the host is chosen by giving it the id's seat.
func (c controlCall) target(req *http.Request) (string, error) {
	said, isSent := sentBy(req.Context())
	switch id := req.PathValue("id"); {
	case c.server.cfg.Cluster == nil:
		return "", nil
	case id == "" && !creates(req):
		return "", nil
	case isSent:
		return said.id, nil
	case id == "":
		_, err := c.askedBy(req)
		return persistent.NewID(), err
	default:
		_, err := c.server.cfg.Sandboxes.Find(c.Token, id)
		if cerrdefs.IsNotFound(err) {
			if err = c.server.known(req.Context(), id, err); err == nil {
				_, err = c.server.cfg.Sandboxes.Find(c.Token, id)
			}
		}
		return id, err
	}
}

func creates(req *http.Request) bool {
	return req.Method == http.MethodPost && strings.HasSuffix(req.Pattern, "/sandboxes")
}

// looks reports whether a call asks for no more than what is recorded.
func looks(req *http.Request) bool {
	return req.Method == http.MethodGet && strings.HasSuffix(req.Pattern, "/{id}")
}

// run answers a call of the control plane on the host that holds its sandbox.
func (c controlCall) run(handle handlerOfControl, w http.ResponseWriter, req *http.Request) error {
	id, err := c.target(req)
	if err != nil || id == "" {
		if err == nil {
			err = handle(c, w, req)
		}
		return err
	}
	req.Header.Set(sandboxHeader, id)
	req, done, err := c.server.route(w, req, c.Caller, id, looks(req))
	if err != nil || done == nil {
		return err
	}
	defer done()
	if err = handle(c, w, req); err != nil {
		c.server.cfg.Sandboxes.Abandon(id)
	}
	return err
}

// all returns the caller's sandboxes, on all hosts.
func (c controlCall) all(ctx context.Context) ([]persistent.Info, error) {
	if c.server.cfg.Cluster == nil {
		return c.server.cfg.Sandboxes.List(c.Token), nil
	}
	names, err := c.server.cfg.Cluster.Entry.Names(ctx)
	if err != nil {
		return nil, err
	}
	list := c.server.cfg.Sandboxes.List(c.Token)
	return slices.DeleteFunc(list, func(i persistent.Info) bool { return !names[i.ID] }), nil
}
