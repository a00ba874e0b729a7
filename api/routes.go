package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

func (s *server) health(w http.ResponseWriter, req *http.Request) error {
	h := s.service.Health(req.Context())
	h.Warnings = append(slices.Clip(h.Warnings), s.cfg.Warnings...)
	status := "ok"
	if h.Problem != "" {
		status = "degraded"
	}
	s.answer(w, http.StatusOK, types.Health{
		Status: status, Version: s.cfg.Version, Engine: h.Engine, Runtime: h.Runtime,
		Image: h.Image, ImageVersion: h.ImageVersion, Problem: h.Problem, Warnings: h.Warnings,
		Settings: types.Settings{LoadedAt: h.Settings.At.UTC(), Pending: append([]string{}, h.Settings.Pending...)},
		UsersDir: h.UsersDir, MaxTimeoutMs: h.MaxTimeout.Milliseconds(),
	})
	return nil
}

func (s *server) containers(w http.ResponseWriter, req *http.Request) error {
	values, err := query(req, "usage")
	if err != nil {
		return err
	}
	var usages map[string]cgroup.Usage
	if value, given := values["usage"]; given {
		asked, err := boolean("usage", value)
		if err != nil {
			return err
		}
		if asked {
			usages = s.service.Usages(req.Context())
		}
	}
	usage := func(name string) *types.ContainerUsage {
		u, known := usages[name]
		if !known {
			return nil
		}
		return &types.ContainerUsage{At: u.At.UTC(), CPUMs: milliseconds(u.CPU), MemoryBytes: u.Memory}
	}
	list := types.ContainerList{Containers: []types.Container{}}
	for _, c := range s.service.Containers() {
		list.Containers = append(list.Containers, types.Container{
			Name: c.Name, ID: c.ID, UserID: c.User, Fingerprint: string(c.Fingerprint), Runtime: c.Runtime,
			State: c.State, Commands: c.Commands, CreatedAt: c.Since.UTC(), LastUsedAt: c.LastUsed.UTC(), Node: s.host(), Usage: usage(c.Name),
		})
	}
	if pooled := s.service.Pooled(); pooled != nil {
		list.Pooled = []types.PooledContainer{}
		for _, c := range pooled {
			list.Pooled = append(list.Pooled, types.PooledContainer{
				Name: c.Name, ID: c.ID, Runtime: c.Runtime, State: c.State, CreatedAt: c.Since.UTC(), Node: s.host(), Usage: usage(c.Name),
			})
		}
	}
	list.Unanswered = fromOthers(s, req, func(host string, others types.ContainerList) {
		for _, c := range others.Containers {
			c.Node = host
			list.Containers = append(list.Containers, c)
		}
		for _, c := range others.Pooled {
			c.Node = host
			list.Pooled = append(list.Pooled, c)
		}
	})
	s.answer(w, http.StatusOK, list)
	return nil
}

func (s *server) put(w http.ResponseWriter, req *http.Request) error {
	var r types.Registration
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

func (s *server) pause(w http.ResponseWriter, req *http.Request) error {
	return s.setPaused(w, req, s.service.Pause)
}

func (s *server) resume(w http.ResponseWriter, req *http.Request) error {
	return s.setPaused(w, req, s.service.Resume)
}

func (s *server) setPaused(w http.ResponseWriter, req *http.Request, change func(context.Context, string) (sandbox.Sandbox, error)) error {
	box, err := change(req.Context(), req.PathValue("id"))
	if err != nil {
		return err
	}
	s.answer(w, http.StatusOK, describe(box))
	return nil
}

func (s *server) delete(w http.ResponseWriter, req *http.Request) error {
	if err := s.service.Delete(req.Context(), req.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) list(w http.ResponseWriter, _ *http.Request) error {
	list := types.SandboxList{Sandboxes: []types.Sandbox{}}
	for _, box := range s.service.List() {
		list.Sandboxes = append(list.Sandboxes, describe(box))
	}
	s.answer(w, http.StatusOK, list)
	return nil
}

// call makes the handler of a route that answers a body of JSON with another.
func call[Body, Answer any](do func(context.Context, *sandbox.Service, string, Body) (Answer, error)) handler {
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

func explain(s *server, w http.ResponseWriter, req *http.Request) error {
	var body types.Explain
	if err := decode(req, &body); err != nil {
		return err
	}
	e, err := s.service.Explain(req.Context(), req.PathValue("id"), sandbox.Confinement{
		Permissions: body.Permissions, AllowedDomains: body.AllowedDomains, PackageManagers: body.PackageManagers,
		Restrictions: process.Restrictions(body.Restrictions), Home: body.Home,
	})
	if err != nil {
		return err
	}
	places := make([]types.Place, len(e.Places))
	for i, place := range e.Places {
		places[i] = types.Place{Path: place.Path.String(), Mode: place.Mode.String(), Why: place.Why}
	}
	s.answer(w, http.StatusOK, types.Explanation{
		UserID: e.User, WorkingDir: e.WorkingDir, Runtime: e.Runtime, Places: places, Home: e.Home, HomeWhy: e.HomeWhy,
		Network: e.Network, Events: e.Events, Fingerprint: e.Fingerprint, Warm: e.Warm, Node: s.host(),
	})
	return nil
}

func (s *server) metrics(w http.ResponseWriter, req *http.Request) error {
	if s.cfg.Metrics == nil {
		return fmt.Errorf("there are no metrics here: %w", cerrdefs.ErrNotFound)
	}
	s.cfg.Metrics.ServeHTTP(w, req)
	return nil
}

// methods are those that a path is looked up with.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// noSuchRoute refuses a request without a route, and lists the methods that the path has.
func noSuchRoute(mux *http.ServeMux, w http.ResponseWriter, req *http.Request) error {
	var allowed []string
	for _, method := range methods {
		other := *req
		other.Method = method
		if _, pattern := mux.Handler(&other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return fmt.Errorf("there is no %s %.200s here: %w", req.Method, req.URL.Path, cerrdefs.ErrNotFound)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return fmt.Errorf("%.200s has no %.20s, but %s: %w", req.URL.Path, req.Method, strings.Join(allowed, " and "), errMethod)
}
