package attach

import (
	"bytes"
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Window is how many bytes of stdin a caller may send beyond those that were acknowledged.
const Window = 1 << 20

// stdin holds what has come and the command has not read yet. It never makes the caller wait, so
// that a signal or a hang-up that follows is seen at once. It is the caller's error to send more
// than the Window.
type stdin struct {
	// taken is called when n bytes have been read. Whoever passes input on acknowledges them, in
	// words that stdin does not know.
	taken func(n int)

	mu    sync.Mutex
	more  sync.Cond // on mu
	data  bytes.Buffer
	ended error // io.EOF, or why nothing more comes
}

func newStdin(taken func(int)) *stdin {
	q := &stdin{taken: taken}
	q.more.L = &q.mu
	return q
}

func (q *stdin) put(data []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.data.Len()+len(data) > Window {
		return errs.Invalid("more than %d bytes of stdin came beyond what was acknowledged", Window)
	}
	if q.ended != nil {
		return nil // stdin has ended, so this is dropped
	}
	q.data.Write(data)
	q.more.Signal()
	return nil
}

// end makes Read return err once everything has been read; the first end counts.
func (q *stdin) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended == nil {
		q.ended = err
	}
	q.more.Broadcast()
}

func (q *stdin) Read(p []byte) (int, error) {
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
