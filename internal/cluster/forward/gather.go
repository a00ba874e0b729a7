package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/access"
)

const (
	// gatherLimit is how long the others have to answer.
	gatherLimit = 3 * time.Second
	// gatherMost is how much one of them may say.
	gatherMost = 32 << 20
)

// Host is this host's name.
func (r *Router) Host() string { return r.cfg.Cluster.Host() }

// Gather asks all others for what a caller gets there, and returns what they answer, by host, and who does not.
func (e Entry) Gather(ctx context.Context, caller access.Caller, pathAndQuery string) (answers map[string][]byte, silent []string) {
	ctx, cancel := context.WithTimeout(ctx, gatherLimit)
	defer cancel()
	answers = map[string][]byte{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, node := range e.cfg.Cluster.Nodes() {
		if node.Name == e.Host() {
			continue
		}
		asking.Go(func() {
			answer, err := e.get(ctx, caller, node.Name, pathAndQuery)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				silent = append(silent, node.Name)
				return
			}
			answers[node.Name] = answer
		})
	}
	asking.Wait()
	return answers, silent
}

// get asks one host, which does not ask others.
func (r *Router) get(ctx context.Context, caller access.Caller, host, pathAndQuery string) ([]byte, error) {
	p, err := r.peer(ctx, host)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url.String()+pathAndQuery, nil)
	if err != nil {
		return nil, err
	}
	if err := r.about(caller).write(req.Header); err != nil {
		return nil, err
	}
	answer, err := p.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, gatherMost+1))
	if err == nil && (answer.StatusCode != http.StatusOK || len(text) > gatherMost) {
		err = errors.New("it does not say")
	}
	return text, err
}

// Gather asks nobody: whoever has sent the call asks all.
func (i Inbound) Gather(context.Context, access.Caller, string) (map[string][]byte, []string) {
	return nil, nil
}
