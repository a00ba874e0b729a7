package api

import (
	"context"
	"net/http"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
)

// Nodes are the hosts of a cluster.
type Nodes interface {
	List() []types.Node
	SetDraining(ctx context.Context, node string, draining bool) error
}

func (s *server) nodes(w http.ResponseWriter, _ *http.Request) error {
	list := types.NodeList{Nodes: []types.Node{}}
	if s.cfg.Nodes != nil {
		list.Nodes = append(list.Nodes, s.cfg.Nodes.List()...)
	}
	s.answer(w, http.StatusOK, list)
	return nil
}

func (s *server) setNode(w http.ResponseWriter, req *http.Request) error {
	var change types.NodeChange
	if err := decode(req, &change); err != nil {
		return err
	}
	if change.Draining == nil {
		return errs.Invalid("draining is missing: want true or false")
	}
	if s.cfg.Nodes == nil {
		return errs.NotFound("host %q is not there: this one is no cluster's (docs/cluster.md)", req.PathValue("node"))
	}
	if err := s.cfg.Nodes.SetDraining(req.Context(), req.PathValue("node"), *change.Draining); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
