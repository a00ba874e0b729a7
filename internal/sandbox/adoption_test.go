package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/internal/warm"
)

var recordSpecs = flag.Bool("record", false, "write testdata/specs.json again: the containers that run are replaced then")

// TestSpecsStayTheSame compares the Specs of some calls with recorded ones. A container is adopted by another
// version of the service only if that makes the same Spec for its calls.
func TestSpecsStayTheSame(t *testing.T) {
	s := newService(t, nil, "")
	root := filepath.Dir(s.usersDir())
	socket := filepath.Join(root, "control.sock")
	s.planner.Files().Use(rootfs.Config{
		UsersDir: s.usersDir(), AllowedMountRoots: []string{root}, EventsSocket: socket, HomeOwners: rootfs.Owners{UID: testUID, GID: testGID},
	})
	s.planner.Use(plan.Config{MaxDomains: 100, LocalUsers: map[string]bool{"bob": true}})
	cfg := *s.cfg()
	cfg.Decisions = decisions.New(10)
	s.Use(cfg)
	platform := plantest.Platform(t)
	platform.Settings.EventsRuntime = "runc"
	s.planner.Platforms().Use(platform)
	home := filepath.Join(s.usersDir(), "alice", "home")
	for _, dir := range []string{home + "/project/apps/crm/data", home + "/project/vault", home + "/.ssh", root + "/data/sub", root + "/skills"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := home + "/.ssh/id"
	if err := errors.Join(os.WriteFile(secret, []byte("key"), 0o600), os.Link(secret, home+"/project/copy"), os.WriteFile(socket, nil, 0o600),
		os.Chown(home, testUID, testGID), os.WriteFile(home+"/.netrc", []byte("password"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for id, r := range map[string]Registration{
		"agent": {
			UserID: "alice", WorkingDir: "/home/project", WriteDirs: []string{"/mnt/data", "/home/out"}, ReadDirs: []string{"/mnt/data"}, Network: true, Events: true,
			Mounts: []MountRequest{{Source: root + "/data", Target: "/mnt/data"}}, SkillsDir: root + "/skills",
		},
		"app":  {UserID: "alice", WorkingDir: "/home/project", AppID: "crm"},
		"bobs": {UserID: "bob", Network: true},
	} {
		if _, _, err := s.Put(id, r); err != nil {
			t.Fatal(err)
		}
	}
	var specs []dockerexec.Spec
	s.runner = &fakeExecutor{t: t, run: func(made dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
		specs = append(specs, made)
		return warm.Result{}, nil
	}}
	for _, call := range []struct {
		id    string
		asked Confinement
	}{
		{"agent", Confinement{}},
		{"agent", Confinement{Permissions: []string{"@workspace", "@network", "@write:/home/out"}, AllowedDomains: []string{"b.example.org", "*.a.example.org"}}},
		{"agent", Confinement{Permissions: []string{"@workspace", "@write:/mnt/data/sub", "@events"}}},
		{"agent", Confinement{Permissions: []string{"@workspace", "@read:" + root + "/data"}, Restrictions: plan.Restrictions{
			DenyRead: []string{"/home/project/vault", "/home/project/later/in"}, DenyWrite: []string{"/home/project/apps"},
		}}},
		{"app", Confinement{}},
		{"bobs", Confinement{Permissions: []string{"@workspace", "@network"}, AllowedDomains: []string{"c.example.org"}}},
	} {
		if _, err := s.Exec(t.Context(), call.id, Request{Command: "true", Confinement: call.asked}, nil); err != nil {
			t.Fatalf("%+v: %v", call.asked, err)
		}
	}
	compareWithRecorded(t, "testdata/specs.json", root, specs)
}

// compareWithRecorded leaves out what differs from run to run: the folder, and the numbers and times of files.
func compareWithRecorded(t *testing.T, name, root string, specs []dockerexec.Spec) {
	t.Helper()
	for i, s := range specs {
		slices.SortFunc(s.Mounts, func(a, b dockerexec.Mount) int { return strings.Compare(a.Target, b.Target) })
		slices.SortFunc(s.Masks, func(a, b dockerexec.Mask) int { return strings.Compare(a.Target, b.Target) })
		slices.SortFunc(s.Pins, func(a, b dockerexec.Pin) int { return strings.Compare(a.Target, b.Target) })
		specs[i] = s
	}
	text, err := json.MarshalIndent(specs, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(root), []byte("/root-of-test"))
	text = regexp.MustCompile(`"(dev|ino|since)": [1-9][0-9]*`).ReplaceAll(text, []byte(`"$1": 1`))
	text = regexp.MustCompile(`"(passwd|group)": ".*"`).ReplaceAll(text, []byte(`"$1": ""`))
	if *recordSpecs {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("containers of the version before would not be adopted: %s", firstDifference(string(want), string(text)))
	}
}

func firstDifference(want, got string) string {
	before, after := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(before), len(after)) {
		if before[i] != after[i] {
			return fmt.Sprintf("line %d was %q, and is %q", i+1, before[i], after[i])
		}
	}
	return fmt.Sprintf("there were %d lines, and are %d", len(before), len(after))
}
