package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
)

// hosts are those of a cluster. Only one that is lost may be removed.
type hosts []types.Node

func (h *hosts) List() []types.Node { return *h }

func (h *hosts) SetDraining(_ context.Context, node string, draining bool) error {
	for i := range *h {
		if n := &(*h)[i]; n.Name == node {
			n.Draining = draining
		}
	}
	return nil
}

func (h *hosts) Remove(_ context.Context, node string) error {
	i := slices.IndexFunc(*h, func(n types.Node) bool { return n.Name == node })
	if i < 0 || !(*h)[i].Lost {
		return errs.Conflict("host %q has a lease", node)
	}
	*h = slices.Delete(*h, i, i+1)
	return nil
}

func TestNode(t *testing.T) {
	l := newLab(t, nil)
	l.nodes = hosts{{Name: "host-1", Address: "10.0.0.1:7483", Version: "v1", Users: 3}, {Name: "host-2", Lost: true}}
	for _, verb := range []string{"drain", "undrain", "remove"} {
		if got := l.ok("", "__complete", "node", verb, ""); got != "host-1\nhost-2\n:4\n" {
			t.Errorf("%s completes to %q", verb, got)
		}
		if got := l.ok("", "__complete", "node", verb, "host-1", ""); got != ":4\n" {
			t.Errorf("%s of two completes to %q", verb, got)
		}
	}
	l.ok("", "node", "drain", "host-1")
	if got, want := l.ok("", "node", "list"), "HOST    STATE     USERS  ADDRESS        VERSION\nhost-1  draining  3      10.0.0.1:7483  v1\nhost-2  lost      0                     \n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, _, err := l.run(t.Context(), "", "node", "remove", "host-1"); err == nil {
		t.Error("a host that has a lease is removed")
	}
	l.ok("", "node", "remove", "host-2")
	if len(l.nodes) != 1 {
		t.Errorf("%+v", l.nodes)
	}
	l.nodes = hosts{}
	if _, says, err := l.run(t.Context(), "", "node", "list"); err != nil || !strings.Contains(says, "no host of the cluster has a lease") {
		t.Errorf("no hosts: %q, %v", says, err)
	}
}

// Where there are several hosts, lists say whose each line is, and which of them did not answer.
func TestListsOfSeveralHosts(t *testing.T) {
	l := &lab{t: t, socket: filepath.Join(t.TempDir(), "api.sock")}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text := `{"containers":[{"userId":"ann","node":"host-2","name":"c"}],"unanswered":["host-3"]}`
		if req.URL.Path == "/v1/egress/decisions" {
			text = `{"decisions":[{"name":"a.org","node":"host-2"}],"unanswered":["host-3"]}`
		}
		_, _ = io.WriteString(w, text)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { _ = server.Close(); serving.Wait() })
	for list, want := range map[string][2]string{"ps": {"\nhost-2  ann ", "containers"}, "egress log": {" a.org ", "decisions"}} {
		out, told, err := l.run(t.Context(), "", strings.Fields(list)...)
		if err != nil || !strings.Contains(out, want[0]) || told != "host host-3 does not answer: its "+want[1]+" are missing\n" {
			t.Errorf("%s: %q %q, %v", list, out, told, err)
		}
	}
}
