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
	// gatherLimit is how long the other hosts have to answer.
	gatherLimit = 3 * time.Second
	// maxGathered is the most bytes that one host may answer.
	maxGathered = 32 << 20
)

// Host returns this host's name.
func (r *Router) Host() string { return r.cfg.Cluster.Host() }

// Gather sends a caller's GET to all other hosts. It returns their answers by host, and the hosts
// that did not answer.
func (e Entry) Gather(ctx context.Context, caller access.Caller,
	pathAndQuery string) (answers map[string][]byte, silent []string) {
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

// get asks one host, which does not ask other hosts in turn.
func (r *Router) get(ctx context.Context, caller access.Caller, host,
	pathAndQuery string) ([]byte, error) {
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
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxGathered+1))
	if err == nil && (answer.StatusCode != http.StatusOK || len(text) > maxGathered) {
		err = errors.New("it does not say")
	}
	return text, err
}

// Gather asks no host: the host that sent the call asks all of them.
func (i Inbound) Gather(context.Context, access.Caller, string) (map[string][]byte, []string) {
	return nil, nil
}
