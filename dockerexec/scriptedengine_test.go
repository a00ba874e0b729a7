package dockerexec

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/engine"
)

// scriptedEngine is a Docker without a kernel, on a test's clock. Its containers have agents that run every command
// at once, as exit says, unless attach does something else.
type scriptedEngine struct {
	t      *testing.T
	dir    string
	attach func(id string, agent attachStream) // what answers the service's Hello in a container
	// unasked has agents that greet by themselves, as all but those of sessions do.
	unasked bool
	gVisor  bool      // the platform is gVisor
	breaks  bool      // sessions break when a command has come
	exit    wire.Exit // of each command
	// refuses is the status of the answer to starts: 409 of a container that is being removed, 404 of one that is gone.
	refuses int
	// fails are the errors of the first starts.
	fails []string
	// started is called with the id of a container that has started, before the answer says so; nil does nothing.
	started func(id string)
	// pauseTakes is how long it takes to pause a container, and to have it go on; neverResumes refuses the latter.
	pauseTakes   time.Duration
	neverResumes bool
	// outOfMemory has Docker say of a container that it was ended because it ran out of memory.
	outOfMemory bool
	// resumedTakes is how long it takes to answer that a container goes on, when it does.
	resumedTakes time.Duration
	// execTakes is how long an exec takes to be created.
	execTakes time.Duration
	// createTakes is how long a container takes to be created, whether or not its caller waits.
	createTakes time.Duration
	// reserved is how many requests for a container are refused because its name is taken, although no container has it.
	reserved int
	// pid is that of each container's first process.
	pid int
	// failing is how many lists of an instance's containers fail from now on, and silent the container about which it says nothing.
	failing int
	silent  string

	mu         sync.Mutex
	containers map[string]containertypes.Summary
	gone       map[string]chan struct{}
	paused     map[string]chan struct{} // closed when it goes on
	pauses     []string                 // what was paused and resumed, as "pause <user>"
	signals    []string                 // that containers were sent, each of which ends one
	made       int
	creates    int // requests
	listeners  []chan events.Message
	execs      int // that are being created
	mostExecs  int
	began      []string // the users in whose containers an exec was made, in this order
}

func newScriptedEngine(t *testing.T) *scriptedEngine {
	s := &scriptedEngine{t: t, dir: t.TempDir(), pid: os.Getpid(), containers: map[string]containertypes.Summary{}, gone: map[string]chan struct{}{}, paused: map[string]chan struct{}{}}
	s.attach = func(id string, conn attachStream) {
		s.obey(attachStream{pausableConn{conn.Conn, func() bool { return s.awake(id) }}})
	}
	return s
}

// executor is one on this engine.
func (s *scriptedEngine) executor() *Executor {
	listener := pipeListener{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: s.routes()}
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(func() { _ = server.Close() })
	docker, err := client.NewClientWithOpts(client.WithVersion("1.41"), client.WithHost("tcp://engine:1"),
		client.WithDialContext(func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			select {
			case listener.conns <- there:
				return here, nil
			case <-listener.closed:
				return nil, net.ErrClosed
			}
		}))
	if err != nil {
		s.t.Fatal(err)
	}
	e := New(engine.NewDocker(docker), Config{
		Instance: "test", DataDir: s.dir, Idle: Idle{RemoveAfter: time.Hour}, Mounts: &preparerLog{},
		Platform:      func(context.Context) (Platform, error) { return s.platform(), nil },
		ImagesChanged: func() {}, Log: zerolog.Nop(),
	})
	e.begin() // for tests without Start
	return e
}

// noProcesses is a processWatcher whom nothing concerns.
type noProcesses struct{}

func (noProcesses) Ended(string) {}
func (noProcesses) Lost()        {}

func (noProcesses) Paused(string, string) bool { return false }

func (s *scriptedEngine) platform() Platform {
	return Platform{Instance: "test", DataDir: s.dir, GVisor: s.gVisor}
}

func (s *scriptedEngine) spec(user string) Spec {
	return Spec{Platform: s.platform(), User: user, SpoolDir: s.dir, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
}

// has puts a container there that an earlier service made.
func (s *scriptedEngine) has(user string) (id string) {
	spool, err := makeSpool(s.spec(user))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.add(s.spec(user).labels(), spool)
}

func (s *scriptedEngine) add(labels map[string]string, spool string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	id := fmt.Sprintf("%064d", s.made)
	s.gone[id] = make(chan struct{})
	s.containers[id] = containertypes.Summary{
		ID: id, State: containertypes.StateRunning, Labels: labels,
		Mounts: []containertypes.MountPoint{{Destination: wire.SpoolPath, Source: spool}},
	}
	return id
}

// connectTo puts a container on a network.
func (s *scriptedEngine) connectTo(id, name, addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[id]
	c.NetworkSettings = &containertypes.NetworkSettingsSummary{Networks: map[string]*network.EndpointSettings{name: {IPAddress: addr, MacAddress: "02:42:0a:01:00:05"}}}
	s.containers[id] = c
}

// lose takes a container away, as somebody at Docker may. tell reports whether its events say so.
func (s *scriptedEngine) lose(id string, tell bool) (there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost, there := s.containers[id]
	if !there {
		return false
	}
	delete(s.containers, id)
	close(s.gone[id])
	for _, listener := range s.listeners {
		if tell {
			listener <- events.Message{Type: events.ContainerEventType, Action: events.ActionDie, Actor: events.Actor{ID: id, Attributes: lost.Labels}}
		}
	}
	return true
}

func (s *scriptedEngine) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1.41/containers/json", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failing > 0 && strings.Contains(r.URL.Query().Get("filters"), labelInstance+"=") {
			s.failing--
			w.WriteHeader(http.StatusInternalServerError)
			answer(w, map[string]string{"message": "not now"})
			return
		}
		list := []containertypes.Summary{}
		for i := range s.made { // the oldest first
			if c, there := s.containers[fmt.Sprintf("%064d", i+1)]; there {
				list = append(list, c)
			}
		}
		answer(w, list)
	})
	mux.HandleFunc("GET /v1.41/networks", func(w http.ResponseWriter, _ *http.Request) { answer(w, []any{}) })
	mux.HandleFunc("GET /v1.41/networks/{name}", func(w http.ResponseWriter, r *http.Request) {
		profile := strings.TrimPrefix(r.PathValue("name"), "daycare-")
		answer(w, network.Inspect{
			Name: r.PathValue("name"), Driver: "bridge", Labels: map[string]string{labelInstance: "test"},
			Options: bridgeOptions("daycare" + bridgeSuffixes[profile]),
			IPAM:    network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.1.0.0/22", Gateway: "10.1.0.1"}}},
		})
	})
	mux.HandleFunc("GET /v1.41/volumes", func(w http.ResponseWriter, _ *http.Request) { answer(w, map[string]any{}) })
	mux.HandleFunc("GET /v1.41/volumes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, map[string]string{"Mountpoint": "/volumes/" + r.PathValue("name")})
	})
	mux.HandleFunc("POST /v1.41/containers/create", s.create)
	mux.HandleFunc("GET /v1.41/containers/{id}/json", func(w http.ResponseWriter, r *http.Request) {
		if _, there := s.container(w, r); there {
			s.mu.Lock()
			c, paused, silent := s.containers[r.PathValue("id")], s.paused[r.PathValue("id")] != nil, s.silent == r.PathValue("id")
			s.mu.Unlock()
			if silent {
				<-r.Context().Done()
				return
			}
			answer(w, map[string]any{
				"Id": r.PathValue("id"), "State": map[string]any{"Running": !s.outOfMemory, "OOMKilled": s.outOfMemory, "Paused": paused, "Pid": s.pid}, "Config": map[string]any{"Labels": c.Labels},
				"NetworkSettings": c.NetworkSettings,
			})
		}
	})
	mux.HandleFunc("POST /v1.41/containers/{id}/wait", func(w http.ResponseWriter, r *http.Request) {
		if gone, there := s.container(w, r); there {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-gone:
				answer(w, map[string]any{"StatusCode": 0})
			case <-r.Context().Done():
			}
		}
	})
	end := func(w http.ResponseWriter, r *http.Request) {
		if _, there := s.container(w, r); there {
			s.lose(r.PathValue("id"), true)
			w.WriteHeader(http.StatusNoContent)
		}
	}
	mux.HandleFunc("POST /v1.41/containers/{id}/kill", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.signals = append(s.signals, r.URL.Query().Get("signal"))
		s.mu.Unlock()
		end(w, r)
	})
	mux.HandleFunc("DELETE /v1.41/containers/{id}", end)
	mux.HandleFunc("POST /v1.41/containers/{id}/start", func(w http.ResponseWriter, r *http.Request) {
		if s.refuses != 0 {
			s.lose(r.PathValue("id"), false)
			w.WriteHeader(s.refuses)
			answer(w, map[string]string{"message": "container is marked for removal and cannot be started"})
			return
		}
		s.mu.Lock()
		fails := s.fails
		s.fails = fails[min(1, len(fails)):]
		s.mu.Unlock()
		if len(fails) > 0 {
			w.WriteHeader(http.StatusInternalServerError)
			answer(w, map[string]string{"message": fails[0]})
			return
		}
		if s.started != nil {
			s.started(r.PathValue("id"))
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /v1.41/containers/{id}/stats", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // for good
	mux.HandleFunc("POST /v1.41/containers/{id}/pause", s.pause)
	mux.HandleFunc("POST /v1.41/containers/{id}/unpause", s.pause)
	mux.HandleFunc("POST /v1.41/containers/{id}/exec", s.exec)
	mux.HandleFunc("POST /v1.41/exec/{id}/start", s.connect)
	mux.HandleFunc("POST /v1.41/containers/{id}/attach", s.connect)
	mux.HandleFunc("GET /v1.41/events", s.follow)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		answer(w, map[string]string{"message": "not there"})
	})
	return mux
}

// bridgeOptions are those of a network that the engine has made.
func bridgeOptions(bridge string) map[string]string {
	return map[string]string{
		"com.docker.network.bridge.name":                 bridge,
		"com.docker.network.bridge.enable_icc":           "false",
		"com.docker.network.bridge.enable_ip_masquerade": "true",
		"com.docker.network.bridge.host_binding_ipv4":    "127.0.0.1",
	}
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// container finds the one that a request is about, or answers that it is gone.
func (s *scriptedEngine) container(w http.ResponseWriter, r *http.Request) (gone <-chan struct{}, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.PathValue("id")
	if _, there = s.containers[id]; !there {
		w.WriteHeader(http.StatusNotFound)
		answer(w, map[string]string{"message": "No such container: " + id})
	}
	return s.gone[id], there
}

func (s *scriptedEngine) create(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Labels           map[string]string
		HostConfig       containertypes.HostConfig
		NetworkingConfig network.NetworkingConfig
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		s.t.Error(err)
	}
	spool := ""
	for _, m := range asked.HostConfig.Mounts {
		if m.Target == wire.SpoolPath {
			spool = m.Source
		}
	}
	time.Sleep(s.createTakes)
	s.mu.Lock()
	s.creates++
	refused := s.creates <= s.reserved
	s.mu.Unlock()
	if refused {
		w.WriteHeader(http.StatusConflict)
		answer(w, map[string]string{"message": "Conflict. The container name is already in use"})
		return
	}
	id := s.add(asked.Labels, spool)
	for name, end := range asked.NetworkingConfig.EndpointsConfig {
		s.connectTo(id, name, end.IPAMConfig.IPv4Address)
	}
	w.WriteHeader(http.StatusCreated)
	answer(w, map[string]string{"Id": id})
}

// sleeps has a container that an earlier service froze.
func (s *scriptedEngine) sleeps(user string) (id string) {
	id = s.has(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setPaused(id, true)
	return id
}

// setPaused pauses a container or has it go on; s.mu is held.
func (s *scriptedEngine) setPaused(id string, paused bool) {
	c := s.containers[id]
	if c.State = containertypes.StateRunning; paused {
		c.State, s.paused[id] = containertypes.StatePaused, make(chan struct{})
	} else {
		close(s.paused[id])
		delete(s.paused, id)
	}
	s.containers[id] = c
}

// awake returns when a container is not paused, and reports whether it is there then.
func (s *scriptedEngine) awake(id string) bool {
	s.mu.Lock()
	resumed, gone := s.paused[id], s.gone[id]
	s.mu.Unlock()
	if resumed != nil {
		select {
		case <-resumed:
		case <-gone:
			return false
		case <-s.t.Context().Done():
		}
	}
	return true
}

// takes says how long it takes to pause a container or have it go on, and then to answer that it does.
func (s *scriptedEngine) takes(pause, resumed time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauseTakes, s.resumedTakes = pause, resumed
}

// pause answers both requests, as Docker 20.10 does.
func (s *scriptedEngine) pause(w http.ResponseWriter, r *http.Request) {
	id, what := r.PathValue("id"), path.Base(r.URL.Path)
	if _, there := s.container(w, r); !there {
		return
	}
	pausing := what == "pause"
	s.mu.Lock()
	before, after := s.pauseTakes, s.resumedTakes
	s.mu.Unlock()
	time.Sleep(before)
	if !pausing {
		defer time.Sleep(after) // and then the answer goes out, which is this short
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if pausing == (s.paused[id] != nil) || !pausing && s.neverResumes {
		w.WriteHeader(http.StatusInternalServerError)
		answer(w, map[string]string{"message": "cannot " + what})
		return
	}
	s.setPaused(id, pausing)
	s.pauses = append(s.pauses, what+" "+s.containers[id].Labels[labelUser])
	w.WriteHeader(http.StatusNoContent)
}
