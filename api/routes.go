package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

func (s *server) health(req *http.Request) (types.Health, error) {
	h := s.service.Health(req.Context())
	h.Warnings = append(slices.Clip(h.Warnings), s.cfg.Warnings...)
	if s.caller.Users.All() && s.cfg.Nodes != nil &&
		!slices.ContainsFunc(s.cfg.Nodes.List(), func(n types.Node) bool { return !n.Lost }) {
		h.Warnings = append(h.Warnings,
			"no host of the cluster is known to have a lease, so none takes users: see that etcd answers here and that sandboxd fence runs on each host (sandboxd doctor --cluster)")
	}
	status := "ok"
	if h.Problem != "" {
		status = "degraded"
	}
	return types.Health{
		Status: status, Version: s.cfg.Version, Engine: h.Engine, Runtime: h.Runtime,
		Image: h.Image, ImageVersion: h.ImageVersion, Problem: h.Problem, Warnings: h.Warnings,
		Settings: types.Settings{LoadedAt: h.Settings.At.UTC(),
			Pending: append([]string{}, h.Settings.Pending...)},
		UsersDir: h.UsersDir, MaxTimeoutMs: h.MaxTimeout.Milliseconds(),
	}, nil
}

func (s *server) containers(req *http.Request) (list types.ContainerList, err error) {
	values, err := query(req, "usage")
	if err != nil {
		return list, err
	}
	asked, err := boolean(values, "usage")
	if err != nil {
		return list, err
	}
	var usages map[string]cgroup.Usage
	if asked {
		usages = s.service.Usages(req.Context())
	}
	usage := func(name string) *types.ContainerUsage {
		u, known := usages[name]
		if !known {
			return nil
		}
		return &types.ContainerUsage{At: u.At.UTC(), CPUMs: milliseconds(u.CPU),
			MemoryBytes: u.Memory}
	}
	list.Containers = []types.Container{}
	for _, c := range s.service.Containers() {
		list.Containers = append(list.Containers, types.Container{
			Name: c.Name, ID: c.ID, UserID: c.User, Fingerprint: string(c.Fingerprint),
			Runtime: c.Runtime, State: c.State, Commands: c.Commands, CreatedAt: c.Since.UTC(),
			LastUsedAt: c.LastUsed.UTC(), Node: s.host(), Usage: usage(c.Name),
		})
	}
	if pooled := s.service.Pooled(); pooled != nil {
		list.Pooled = []types.PooledContainer{}
		for _, c := range pooled {
			list.Pooled = append(list.Pooled, types.PooledContainer{
				Name: c.Name, ID: c.ID, Runtime: c.Runtime, State: c.State,
				CreatedAt: c.Since.UTC(), Node: s.host(), Usage: usage(c.Name),
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
	return list, nil
}

func (s *server) put(req *http.Request, r types.Registration) (any, error) {
	box, isNew, err := s.service.Put(req.PathValue("id"), registration(r))
	if isNew {
		return created{describe(box)}, err
	}
	return describe(box), err
}

func (s *server) get(req *http.Request) (types.Sandbox, error) {
	box, err := s.service.Get(req.PathValue("id"))
	return describe(box), err
}

func (s *server) pause(req *http.Request) (types.Sandbox, error) {
	box, err := s.service.Pause(req.Context(), req.PathValue("id"))
	return describe(box), err
}

func (s *server) resume(req *http.Request) (types.Sandbox, error) {
	box, err := s.service.Resume(req.Context(), req.PathValue("id"))
	return describe(box), err
}

func (s *server) delete(req *http.Request) (nothing, error) {
	return nothing{}, s.service.Delete(req.Context(), req.PathValue("id"))
}

// sandboxAnswer is a types.SandboxList that makes its sandboxes while encoding.
type sandboxAnswer struct {
	Sandboxes lazyList[types.Sandbox] `json:"sandboxes"`
}

// list counts its answer as the request's memory, but for the directories, which it shares with the
// registry.
func (s *server) list(*http.Request) (sandboxAnswer, error) {
	boxes := s.service.List()
	const each = 512
	return sandboxAnswer{func(yield func(types.Sandbox) bool) {
		for _, box := range boxes {
			if !yield(describe(box)) {
				return
			}
		}
	}}, s.memory.take(len(boxes) * each)
}

func (s *server) explain(req *http.Request, body types.Explain) (types.Explanation, error) {
	if err := checkIn(body.In); err != nil {
		return types.Explanation{}, err
	}
	inSandbox := body.In == types.InSandbox
	e, err := s.service.Explain(req.Context(), req.PathValue("id"), inSandbox, sandbox.Confinement{
		Permissions: body.Permissions, AllowedDomains: body.AllowedDomains,
		PackageManagers: body.PackageManagers,
		Restrictions:    sandbox.Restrictions(body.Restrictions), Home: body.Home,
	})
	places := make([]types.Place, len(e.Places))
	for i, place := range e.Places {
		places[i] = types.Place{Path: place.Path.String(), Mode: place.Mode.String(),
			Why: place.Why}
	}
	var secrets []types.SecretUse
	for _, use := range e.Secrets {
		secrets = append(secrets, types.SecretUse(use))
	}
	return types.Explanation{
		UserID: e.User, WorkingDir: e.WorkingDir, Runtime: e.Runtime, Places: places, Home: e.Home,
		HomeWhy: e.HomeWhy, Network: e.Network, Events: e.Events, Processes: e.Processes, Secrets: secrets,
		Fingerprint: e.Fingerprint, Warm: e.Warm, Node: s.host(),
	}, err
}

func (s *server) metrics(w http.ResponseWriter, req *http.Request) error {
	if s.cfg.Metrics == nil {
		return fmt.Errorf("there are no metrics here: %w", cerrdefs.ErrNotFound)
	}
	s.cfg.Metrics.ServeHTTP(w, req)
	return nil
}

// methods are those tried to find out which ones a path has.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodOptions,
}

// noSuchRoute refuses a request that has no route, and lists the methods that its path does have.
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
		return fmt.Errorf("there is no %s %.200s here: %w", req.Method, req.URL.Path,
			cerrdefs.ErrNotFound)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return fmt.Errorf("%.200s has no %.20s, but %s: %w", req.URL.Path, req.Method,
		strings.Join(allowed, " and "), errMethod)
}
