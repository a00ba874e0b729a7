package api

import (
	"net/http"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/ids"
)

func (s *server) removeUser(req *http.Request) (removed types.RemovedUser, _ error) {
	values, err := query(req, "home")
	if err != nil {
		return removed, err
	}
	home, err := boolean(values, "home")
	if err != nil {
		return removed, err
	}
	user, err := ids.ParseUser(req.PathValue("userId"))
	if err != nil {
		return removed, err
	}
	r, err := s.service.RemoveUser(req.Context(), user, home)
	return types.RemovedUser{UserID: user.String(), Sandboxes: r.Sandboxes, Processes: r.Processes,
		Containers: r.Containers, Home: r.Home}, err
}
