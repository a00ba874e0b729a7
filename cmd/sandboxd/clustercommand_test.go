package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// A host that joins has files that others cannot read, and settings that the service takes; nothing is overwritten.
func TestJoiningACluster(t *testing.T) {
	dir := t.TempDir()
	folder, settings := filepath.Join(dir, "cluster"), filepath.Join(dir, "settings.json")
	run := func(args ...string) error {
		cmd := clusterCommand(&settings)
		cmd.SetArgs(append(args, "--dir", folder))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		return cmd.ExecuteContext(t.Context())
	}
	if err := run("join", "host-1", "10.0.0.1"); err == nil || !strings.Contains(err.Error(), "sandboxd cluster issue host-1 10.0.0.1") {
		t.Errorf("without certificates: %v", err)
	}
	if _, err := os.Stat(settings); err == nil {
		t.Error("settings were written")
	}
	if err := run("init"); err != nil {
		t.Fatal(err)
	}
	if err := run("join", "host-1", "10.0.0.1", "--etcd", "https://10.0.0.1:2379,https://10.0.0.2:2379"); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConfig(settings)
	if err != nil || cfg.Cluster.Name != "host-1" || len(cfg.Cluster.Etcd) != 2 || cfg.Cluster.Listen != "10.0.0.1:7483" || cfg.Cluster.KeyFile != filepath.Join(folder, "host-1.key") {
		t.Errorf("%+v, %v", cfg.Cluster, err)
	}
	for _, name := range []string{"ca.key", "sealing.key", "host-1.key"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Mode() != fs.FileMode(0o600) {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	before, _ := os.ReadFile(settings)
	if err := run("join", "host-2", "10.0.0.2"); err == nil || !strings.Contains(err.Error(), "cluster is set there already") {
		t.Errorf("another host: %v", err)
	}
	if after, _ := os.ReadFile(settings); !bytes.Equal(before, after) {
		t.Errorf("it was changed:\n%s", after)
	}
	// Certificates that were brought here for another host.
	if err := os.Remove(settings); err != nil {
		t.Fatal(err)
	}
	if err := forward.Issue(folder, "host-2", "10.0.0.2"); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"host-2.crt": "host-3.crt", "host-2.key": "host-3.key"} {
		if err := os.Rename(filepath.Join(folder, from), filepath.Join(folder, to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := run("join", "host-3", "10.0.0.3"); err == nil || !strings.Contains(err.Error(), `no use for host "host-3"`) {
		t.Errorf("with another's certificate: %v", err)
	}
}
