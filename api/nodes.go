package api

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
)

// Nodes are the hosts of a cluster.
type Nodes interface {
	List() []types.Node
	SetDraining(ctx context.Context, node string, draining bool) error
	Remove(ctx context.Context, node string) error
}

// fromOthers calls take with each other host's answer to the same request, and returns the names of
// the hosts that do not answer. It does nothing for a request about a single user.
func fromOthers[List any](s *server, req *http.Request,
	take func(host string, list List)) (silent []string) {
	if s.cfg.Router == nil || s.service.Named(req.URL.Query().Get("userId")) != "" {
		return nil
	}
	answers, silent := s.cfg.Router.Gather(req.Context(), s.caller, req.URL.RequestURI())
	for _, host := range slices.Sorted(maps.Keys(answers)) {
		var list List
		if json.Unmarshal(answers[host], &list) != nil {
			silent = append(silent, host)
			continue
		}
		take(host, list)
	}
	slices.Sort(silent)
	return silent
}

// host returns this host's name; empty for a single host.
func (s *server) host() string {
	if s.cfg.Router == nil {
		return ""
	}
	return s.cfg.Router.Host()
}

func (s *server) nodes(*http.Request) (types.NodeList, error) {
	list := types.NodeList{Nodes: []types.Node{}}
	if s.cfg.Nodes != nil {
		list.Nodes = append(list.Nodes, s.cfg.Nodes.List()...)
	}
	return list, nil
}

func (s *server) setNode(req *http.Request, change types.NodeChange) (nothing, error) {
	if change.Draining == nil {
		return nothing{}, errs.Invalid("draining is missing: want true or false")
	}
	if s.cfg.Nodes == nil {
		return nothing{}, noCluster(req)
	}
	return nothing{}, s.cfg.Nodes.SetDraining(req.Context(), req.PathValue("node"),
		*change.Draining)
}

func (s *server) removeNode(req *http.Request) (nothing, error) {
	if s.cfg.Nodes == nil {
		return nothing{}, noCluster(req)
	}
	return nothing{}, s.cfg.Nodes.Remove(req.Context(), req.PathValue("node"))
}

func noCluster(req *http.Request) error {
	return errs.NotFound("host %q is not known: this host is in no cluster (docs/cluster.md)",
		req.PathValue("node"))
}
