package engine

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"
)

// createRequest returns the body of the request that Docker gets for a Spec.
func createRequest(t *testing.T, s Spec) (body string) {
	t.Helper()
	d := scripted(func(r *http.Request) (int, string) {
		sent, _ := io.ReadAll(r.Body)
		body = string(sent)
		return http.StatusCreated, `{"Id":"x"}`
	}).engine(t)
	if _, err := d.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return body
}

// recorded returns a Spec of testdata, which is what dockerexec asks for.
func recorded(t *testing.T, file string) (s Spec) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Docker is sent the same, byte for byte, in every version.
func TestDockerIsSentTheSame(t *testing.T) {
	files, err := filepath.Glob("testdata/create/*.spec.json")
	if err != nil || len(files) != 9 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		want, err := os.ReadFile(strings.TrimSuffix(file, ".spec.json") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), createRequest(t, recorded(t, file))); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", file, diff)
		}
	}
}

// What every container has in Docker, whatever its Spec says.
func TestEveryContainerIsConfined(t *testing.T) {
	for name, s := range map[string]Spec{
		"empty": {}, "session": recorded(t, "testdata/create/session.spec.json"),
		"root": recorded(t, "testdata/create/root.spec.json"),
	} {
		var asked struct{ HostConfig containertypes.HostConfig }
		if err := json.Unmarshal([]byte(createRequest(t, s)), &asked); err != nil {
			t.Fatal(err)
		}
		host := asked.HostConfig
		for promise, kept := range map[string]bool{
			"never privileged":      !host.Privileged,
			"no network":            host.NetworkMode == "none",
			"no published port":     len(host.PortBindings) == 0 && !host.PublishAllPorts,
			"an IPC of its own":     host.IpcMode == containertypes.IPCModePrivate,
			"no PID of the host":    host.PidMode == "",
			"no user of the host":   host.UsernsMode == "",
			"no UTS of the host":    host.UTSMode == "",
			"no cgroup of the host": host.CgroupnsMode == containertypes.CgroupnsModePrivate,
			"no device": len(host.Devices)+len(host.DeviceRequests)+
				len(host.DeviceCgroupRules) == 0,
			"no volume but its own": len(host.Binds)+len(host.VolumesFrom) == 0,
			"no restart":            host.RestartPolicy.Name == "no",
			"no log on the disk":    host.LogConfig.Type == "none",
			"no annotation":         len(host.Annotations) == 0,
			"no extra group":        len(host.GroupAdd) == 0,
		} {
			if !kept {
				t.Errorf("%s: %s: %+v", name, promise, host)
			}
		}
	}
}
