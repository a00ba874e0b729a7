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

// issue takes no host that settings would not take, prints what these are on the host, and says why it makes none twice.
func TestIssuingCertificates(t *testing.T) {
	dir := t.TempDir()
	settings := filepath.Join(dir, "settings.json")
	for _, tt := range []struct {
		args []string
		want string // begins the error
	}{
		{[]string{"issue", "host-1", "10.0.0.1"}, "cannot use the authority in DIR: "},
		{[]string{"init"}, ""},
		{[]string{"init"}, "cannot make an authority: there is one in DIR already"},
		{[]string{"issue", "Host 1", "10.0.0.1"}, "cannot make a certificate: cannot use the settings then: 1 fault\n  cluster.name: "},
		{[]string{"issue", "host-1", "10.0.0"}, "cannot make a certificate: cannot use the settings then: 1 fault\n  cluster.listen: "},
		{[]string{"issue", "host-1", "10.0.0.1"}, ""},
		{[]string{"issue", "host-1", "10.0.0.1"}, "cannot make a certificate for host \"host-1\": DIR/host-1.crt exists already; to make a new one, remove "},
	} {
		var out bytes.Buffer
		cmd := clusterCommand(&settings)
		cmd.SetArgs(append(tt.args, "--dir", filepath.Join(dir, "cluster")))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		want := strings.ReplaceAll(tt.want, "DIR", filepath.Join(dir, "cluster"))
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", tt.args, err, want)
		}
		if tt.args[0] != "issue" || err != nil {
			continue
		}
		_, text, _ := strings.Cut(out.String(), "members of etcd:\n")
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if cfg, err := loadConfig(settings); err != nil || cfg.Cluster.KeyFile != "/etc/daycare-sandbox/cluster/host-1.key" || cfg.Cluster.Listen != "10.0.0.1:7483" {
			t.Errorf("%s\n%+v, %v", out.String(), cfg.Cluster, err)
		}
	}
}

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
	if err := run("join", "host-3", "10.0.0.3"); err == nil || !strings.Contains(err.Error(), `cannot be used for host "host-3"`) {
		t.Errorf("with another's certificate: %v", err)
	}
}
