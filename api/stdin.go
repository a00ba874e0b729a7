package api

import (
	"bytes"
	"fmt"
	"sync"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// stdinQueue holds the stdin that has come and that the command has not read yet. It never makes
// the receiver wait, so that a signal or a hang-up behind it is seen at once: the caller may send
// only as much as was acknowledged, and more is its fault.
type stdinQueue struct {
	// taken tells the caller that n bytes have been read.
	taken func(n int)

	mu    sync.Mutex
	more  sync.Cond // on mu
	data  bytes.Buffer
	ended error // io.EOF, or why nothing more comes
}

func newStdinQueue(taken func(int)) *stdinQueue {
	q := &stdinQueue{taken: taken}
	q.more.L = &q.mu
	return q
}

func (q *stdinQueue) put(data []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.data.Len()+len(data) > apitypes.StdinWindow {
		return fmt.Errorf("more than %d bytes of stdin came beyond what was taken: %w", apitypes.StdinWindow, cerrdefs.ErrInvalidArgument)
	}
	if q.ended != nil {
		return nil // the command has closed its stdin
	}
	q.data.Write(data)
	q.more.Signal()
	return nil
}

// end makes Read return err once everything has been read; the first end counts.
func (q *stdinQueue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended == nil {
		q.ended = err
	}
	q.more.Broadcast()
}

func (q *stdinQueue) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	q.mu.Lock()
	for q.data.Len() == 0 && q.ended == nil {
		q.more.Wait()
	}
	n, _ := q.data.Read(p)
	ended := q.ended
	q.mu.Unlock()
	if n == 0 {
		return 0, ended
	}
	q.taken(n)
	return n, nil
}
