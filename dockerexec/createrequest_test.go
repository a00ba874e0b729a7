package dockerexec

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/internal/engine"
)

// creator is a Docker that keeps what it is asked to create.
type creator struct{ asked []byte }

func (c *creator) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked, _ = io.ReadAll(r.Body)
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"Id":"x"}`)),
	}, nil
}

// What Docker is sent for a Spec is the same, byte for byte, in every version: a container that
// another version has made is reused. Files in testdata/create hold it.
func TestDockerIsSentTheSame(t *testing.T) {
	session, process, persistent := fullSpec(), fullSpec(), fullSpec()
	session.Process, persistent.Process = Process{}, Process{}
	persistent.Persistent = "l-1"
	root, offline, spaces := persistent, session, session
	root.Root, root.Platform.GVisor = true, true
	offline.Egress, offline.Platform.Offline = Egress{}, "runsc-offline"
	spaces.Platform.Unconfined = false
	at := wiring{
		network: "daycare-isolated", addr: netip.MustParseAddr("10.1.2.3"), gateway: "10.1.2.1",
		resolvConf: "/data/resolv.conf",
	}
	prepared := Prepared{Mounts: []Mount{{Source: "/data/x", Target: "/home/x"}}, Masks: []Mask{{Target: "/home/y"}}}
	for name, tt := range map[string]struct {
		spec     Spec
		prepared Prepared
		net      wiring
	}{
		"empty": {}, "session": {spec: session}, "process": {spec: process}, "lasting": {spec: persistent}, "root": {spec: root},
		"prepared": {spec: session, prepared: prepared}, "network": {spec: session, net: at}, "offline": {spec: offline},
		"namespaces": {spec: spaces},
	} {
		t.Run(name, func(t *testing.T) {
			got := createRequest(t, tt.spec, "/data/users/alice/.spool-1", tt.prepared, tt.net)
			// The profile differs with the architecture.
			profile, err := json.Marshal(namespaceProfile())
			if err != nil {
				t.Fatal(err)
			}
			got = bytes.Replace(got, bytes.Trim(profile, `"`), []byte("PROFILE"), 1)
			file := filepath.Join("testdata", "create", name+".json")
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// createRequest returns the body of the request that makes a Spec's container.
func createRequest(t *testing.T, s Spec, spool string, prepared Prepared, net wiring) []byte {
	t.Helper()
	asked := &creator{}
	docker, err := client.NewClientWithOpts(
		client.WithVersion("1.41"), client.WithHost("tcp://engine:1"),
		client.WithHTTPClient(&http.Client{Transport: asked}))
	if err != nil {
		t.Fatal(err)
	}
	wanted := s.engineSpec(spool, prepared, net)
	wanted.CgroupParent = "daycare.slice"
	if _, err := engine.NewDocker(docker).Create(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	return asked.asked
}

// dockers is what Docker is asked for.
type dockers struct {
	containertypes.Config
	HostConfig containertypes.HostConfig
}

func askedFor(t *testing.T, s Spec, spool string, prepared Prepared, net wiring) (d dockers) {
	t.Helper()
	if err := json.Unmarshal(createRequest(t, s, spool, prepared, net), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// hostConfig is the part of it that holds the container.
func hostConfig(t *testing.T, s Spec, spool string) *containertypes.HostConfig {
	t.Helper()
	d := askedFor(t, s, spool, Prepared{}, wiring{})
	return &d.HostConfig
}
