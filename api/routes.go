package api

import (
	"context"
	"net/http"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/sandbox"
)

func (s *server) health(w http.ResponseWriter, req *http.Request) error {
	h := s.service.Health(req.Context())
	status := "ok"
	if h.Problem != "" {
		status = "degraded"
	}
	s.answer(w, http.StatusOK, apitypes.Health{
		Status: status, Version: s.cfg.Version, Engine: h.Engine, Runtime: h.Runtime,
		Image: h.Image, ImageVersion: h.ImageVersion, Problem: h.Problem, Warnings: h.Warnings,
	})
	return nil
}

func (s *server) containers(w http.ResponseWriter, _ *http.Request) error {
	list := apitypes.ContainerList{Containers: []apitypes.Container{}}
	for _, c := range s.service.Containers() {
		list.Containers = append(list.Containers, apitypes.Container{
			Name: c.Name, ID: c.ID, UserID: c.User, Fingerprint: string(c.Fingerprint), Runtime: c.Runtime,
			State: c.State, Commands: c.Commands, CreatedAt: c.Since.UTC(), LastUsedAt: c.LastUsed.UTC(),
		})
	}
	s.answer(w, http.StatusOK, list)
	return nil
}

func (s *server) put(w http.ResponseWriter, req *http.Request) error {
	var r apitypes.Registration
	if err := decode(req, &r); err != nil {
		return err
	}
	box, created, err := s.service.Put(req.PathValue("id"), registration(r))
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	s.answer(w, status, describe(box))
	return nil
}

func (s *server) get(w http.ResponseWriter, req *http.Request) error {
	box, err := s.service.Get(req.PathValue("id"))
	if err != nil {
		return err
	}
	s.answer(w, http.StatusOK, describe(box))
	return nil
}

func (s *server) delete(w http.ResponseWriter, req *http.Request) error {
	if err := s.service.Delete(req.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) list(w http.ResponseWriter, _ *http.Request) error {
	list := apitypes.SandboxList{Sandboxes: []apitypes.Sandbox{}}
	for _, box := range s.service.List() {
		list.Sandboxes = append(list.Sandboxes, describe(box))
	}
	s.answer(w, http.StatusOK, list)
	return nil
}

// call makes the handler of a route that answers a body of JSON with another.
func call[Body, Answer any](do func(context.Context, Service, string, Body) (Answer, error)) handler {
	return func(s *server, w http.ResponseWriter, req *http.Request) error {
		var body Body
		if err := decode(req, &body); err != nil {
			return err
		}
		answer, err := do(req.Context(), s.service, req.PathValue("id"), body)
		if err != nil {
			return err
		}
		s.answer(w, http.StatusOK, answer)
		return nil
	}
}

func explain(ctx context.Context, service Service, id string, body apitypes.Explain) (apitypes.Explanation, error) {
	e, err := service.Explain(ctx, id, sandbox.ExplainRequest{
		Permissions: body.Permissions, AllowedDomains: body.AllowedDomains, PackageManagers: body.PackageManagers, Home: body.Home,
	})
	if err != nil {
		return apitypes.Explanation{}, err
	}
	places := make([]apitypes.Place, len(e.Places))
	for i, place := range e.Places {
		places[i] = apitypes.Place(place)
	}
	return apitypes.Explanation{
		UserID: e.User, WorkingDir: e.WorkingDir, Runtime: e.Runtime, Places: places, Home: e.Home, HomeWhy: e.HomeWhy,
		Network: e.Network, Events: e.Events, Fingerprint: e.Fingerprint, Warm: e.Warm,
	}, nil
}
