package e2b

import (
	"context"
	"net/http"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/lasting"
)

// Router says where a call is answered that is about a sandbox, where there are several hosts.
type Router interface {
	// Route is asked once it is known that the caller may. Where another host answers, it has when Route returns, and done is
	// nil. Else the call is this host's to answer until done is called, by ctx. A call that only looks is this host's, too, when
	// no host holds the sandbox.
	Route(w http.ResponseWriter, req *http.Request, caller access.Caller, id string, looks bool) (ctx context.Context, done func(), err error)
	// Await waits until all is known here that was known anywhere of a sandbox.
	Await(ctx context.Context, id string) error
}

// Cluster is what the surface needs where there are several hosts. All fields must be set.
type Cluster struct {
	// Router is for callers' calls, and Sent for those that other hosts send. SentBy says whose these are, and about which
	// sandbox: the host has found that out, and for a call into a sandbox that is whose sandbox it is.
	Router, Sent Router
	SentBy       func(*http.Request) (caller access.Caller, id string, err error)
	// Names are those of all sandboxes that there are, of which all is known here when it returns.
	Names func(ctx context.Context) (map[string]bool, error)
}

// Surface answers callers, and Sent what other hosts send of theirs; nil where there is one.
type Surface struct {
	http.Handler
	Sent http.Handler
}

// sent is what another host says about a call that it has sent. What the caller has written is no word of a host's: a caller
// may also have a header be dropped on the way between hosts, by naming it in Connection.
type sent struct {
	access.Caller
	id string // of the sandbox
}

type sentKey struct{}

// sentBy is about a call that another host has sent.
func sentBy(ctx context.Context) (sent, bool) {
	said, is := ctx.Value(sentKey{}).(sent)
	return said, is
}

// sent answers what other hosts send. Whose call it is they have found out; his key is that of this host's file of tokens.
func (s *server) sent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		caller, id, err := s.cfg.Cluster.SentBy(req)
		if err != nil {
			fail(w, err)
			return
		}
		known, is := s.cfg.Tokens.Named(caller.Name)
		if !is {
			fail(w, errs.Unauthenticated("the host that holds the sandbox does not know this key: tcp.tokensFile has to be the same on all hosts"))
			return
		}
		next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), sentKey{}, sent{known, id})))
	})
}

// route finds out which host answers a call about a sandbox.
func (s *server) route(w http.ResponseWriter, req *http.Request, caller access.Caller, id string, looks bool) (_ *http.Request, done func(), err error) {
	if s.cfg.Cluster == nil {
		return req, func() {}, nil
	}
	router := s.cfg.Cluster.Router
	if _, is := sentBy(req.Context()); is {
		router = s.cfg.Cluster.Sent
	}
	ctx, done, err := router.Route(w, req, caller, id, looks)
	if err != nil || done == nil {
		return nil, nil, err
	}
	return req.WithContext(ctx), done, nil
}

// known has what another host has recorded of a sandbox known here, of which nothing is.
func (s *server) known(ctx context.Context, id string, err error) error {
	if _, sent := sentBy(ctx); s.cfg.Cluster == nil || sent || !cerrdefs.IsNotFound(err) {
		return err
	}
	return s.cfg.Cluster.Router.Await(ctx, id)
}

// target is the sandbox that a call of the control plane is about; empty for none. One that is to be made has an id before it
// is known which host makes it.
func (s *server) target(c controlCall, req *http.Request) (string, error) {
	said, isSent := sentBy(req.Context())
	switch id := req.PathValue("id"); {
	case s.cfg.Cluster == nil:
		return "", nil
	case id == "" && !creates(req):
		return "", nil
	case isSent:
		return said.id, nil
	case id == "":
		return lasting.NewID(), nil
	default:
		_, err := s.cfg.Sandboxes.Find(c.Token, id)
		if cerrdefs.IsNotFound(err) {
			if err = s.known(req.Context(), id, err); err == nil {
				_, err = s.cfg.Sandboxes.Find(c.Token, id)
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

// controlledAt answers a call of the control plane on the host that holds its sandbox.
func (s *server) controlledAt(c controlCall, handle handlerOfControl, w http.ResponseWriter, req *http.Request) error {
	id, err := s.target(c, req)
	if err != nil || id == "" {
		if err == nil {
			err = handle(c, w, req)
		}
		return err
	}
	req.Header.Set(sandboxHeader, id)
	req, done, err := s.route(w, req, c.Caller, id, looks(req))
	if err != nil || done == nil {
		return err
	}
	defer done()
	if err = handle(c, w, req); err != nil {
		s.cfg.Sandboxes.Abandon(id)
	}
	return err
}

// all are an owner's sandboxes, on all hosts.
func (s *server) all(ctx context.Context, c controlCall) ([]lasting.Info, error) {
	if s.cfg.Cluster == nil {
		return s.cfg.Sandboxes.List(c.Token), nil
	}
	names, err := s.cfg.Cluster.Names(ctx)
	if err != nil {
		return nil, err
	}
	list := s.cfg.Sandboxes.List(c.Token)
	return slices.DeleteFunc(list, func(i lasting.Info) bool { return !names[i.ID] }), nil
}
