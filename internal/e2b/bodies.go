package e2b

import (
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/daycare-run/sandbox/internal/errs"
)

// bodiesOf is how many bytes of requests that are read whole all callers may have here at a time: some of the largest of each.
// One owner alone has a quarter, of which one sandbox has half.
func bodiesOf(maxRequest int64) share {
	total := int(max(256<<20, 16*maxRequest))
	return newShare(total, total/8)
}

// keptBody is a body that is kept in memory until its request is answered, where all callers share it.
type keptBody struct {
	io.ReadCloser
	of        share
	owner, id string
	bytes     int
}

// kept counts a request's body for an owner's sandbox, until release is called.
func (s *server) kept(owner, id string, req *http.Request) (release func()) {
	if req.ContentLength == 0 || req.Body == nil {
		return func() {}
	}
	b := &keptBody{ReadCloser: req.Body, of: s.bodies, owner: owner, id: id}
	req.Body = b
	return func() {
		if b.bytes > 0 {
			b.of.give(b.owner, b.id, b.bytes)
		}
	}
}

// keeping has a call's message counted.
func (s *server) keeping(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := calledOf(req.Context())
		defer s.kept(c.Info().Owner, c.ID(), req)()
		handler.ServeHTTP(w, req)
	})
}

func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if !b.of.take(b.owner, b.id, n) {
			return 0, connect.NewError(connect.CodeResourceExhausted, errs.Busy("requests have as much memory as they may: try again when one has been answered"))
		}
		b.bytes += n
	}
	return n, err
}
