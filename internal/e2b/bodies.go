package e2b

import (
	"context"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/files"
)

// bodiesOf returns how many bytes of requests that are read whole all callers together may have
// here at a time: room for some of the largest. One owner alone has a quarter of that, and one
// sandbox half of the quarter.
func bodiesOf(maxRequest int64) share {
	total := int(max(256<<20, 16*maxRequest))
	return newShare(total, total/8)
}

// kept counts what a request has in memory until it is answered, out of what all callers share: its
// body, and lists.
type kept struct {
	io.ReadCloser // the body
	of            share
	owner, id     string
	bytes         int
}

// keeps counts a request's memory for an owner's sandbox, until release is called.
func (s *server) keeps(owner, id string, req *http.Request) *kept {
	k := &kept{ReadCloser: req.Body, of: s.bodies, owner: owner, id: id}
	if req.ContentLength != 0 && req.Body != nil {
		req.Body = k
	}
	return k
}

func (k *kept) release() {
	if k.bytes > 0 {
		k.of.give(k.owner, k.id, k.bytes)
	}
}

type keptKey struct{}

// keeping counts the memory of a call's messages.
func (s *server) keeping(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := calledOf(req.Context())
		k := s.keeps(c.Info().Owner, c.ID(), req)
		defer k.release()
		handler.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), keptKey{}, k)))
	})
}

// takeListed counts the directory entries with which a call in the Connect protocol is to be
// answered.
func takeListed(ctx context.Context, dir string, entries ...files.Entry) error {
	const beside = 256 // for the rest of what is answered for each
	n := 0
	for _, e := range entries {
		n += 2*(len(dir)+len(e.Name)+len(e.LinkTarget)) + beside
	}
	return ctx.Value(keptKey{}).(*kept).take(n)
}

func (k *kept) take(n int) error {
	if !k.of.take(k.owner, k.id, n) {
		return errs.Busy(
			"requests use all the memory that they may: try again when one has been answered")
	}
	k.bytes += n
	return nil
}

func (k *kept) Read(p []byte) (int, error) {
	n, err := k.ReadCloser.Read(p)
	if n > 0 {
		if full := k.take(n); full != nil {
			return 0, connect.NewError(connect.CodeResourceExhausted, full)
		}
	}
	return n, err
}
