package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

// The table "Filesystem deny-list" of the document Sandboxes, and what is of the same kind.
var (
	homeSecrets = []string{
		"/home/.ssh", "/home/.gnupg", "/home/.aws", "/home/.kube", "/home/.docker", "/home/.netrc",
	}
	systemSecrets = []string{"/etc/ssh", "/etc/sudoers", "/etc/shadow", "/etc/ssl/private"}
	keychains     = []string{"/home/Library/Keychains", "/home/Library/Application Support/com.apple.TCC"}

	homeAlike = []string{
		"/home/.azure", "/home/.oci", "/home/.config/gcloud", "/home/.config/gh", "/home/.boto", "/home/.s3cfg",
		"/home/.git-credentials", "/home/.pgpass", "/home/.my.cnf", "/home/.pypirc", "/home/.vault-token",
		"/home/.password-store",
	}
	systemAlike = []string{"/etc/gshadow", "/etc/sudoers.d"}

	denyList = slices.Concat(homeSecrets, systemSecrets, keychains, homeAlike, systemAlike)
)

func TestDeniedInHome(t *testing.T) {
	var want []string
	for _, row := range slices.Concat(homeSecrets, keychains, homeAlike) {
		want = append(want, strings.TrimPrefix(row, "/home/"))
	}
	if got := policy.DeniedInHome(); !slices.Equal(got, want) {
		t.Errorf("DeniedInHome() = %q, want %q", got, want)
	}
}

func TestDenyList(t *testing.T) {
	home := agent(t, "/home", "")
	homeWriter := agent(t, "/home/ws", "")
	homeWriter.WriteDirs = paths(t, "/home")
	appWriter := agent(t, "/home/apps/mail/data", "mail")
	appWriter.WriteDirs = paths(t, "/home")
	parents := []string{"@write:/home/Library", "@write:/home/Library/Application Support", "@write:/home/.config"}

	tests := []struct {
		name string
		view policy.View
	}{
		{"no grants", view(t, home)},
		{"network and events alone", view(t, all(home), "@network", "@events")},
		{"@workspace where the working directory is the home", view(t, home, "@workspace")},
		{"@write of the home", view(t, homeWriter, "@write:/home")},
		{"@write of the directory above each", view(t, homeWriter, parents...)},
		{"@write of both", view(t, homeWriter, append(parents, "@write:/home")...)},
		{"@read of the home", view(t, home, "@read:/home")},
		{"an app", view(t, agent(t, "/home", "mail"))},
		{"an app that writes to the home", view(t, appWriter, "@write:/home", "@workspace")},
		{"the file calls", homeWriter.Held()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, row := range denyList {
				for _, name := range []string{row, row + "/x", row + "/x/y", row + "/.ssh"} {
					if got := modeOf(tt.view, path(t, name)); got != "hidden" {
						t.Errorf("%s is %s", name, got)
					}
				}
				if at, _ := tt.view.At(path(t, row)); at.Path.String() != row || !strings.HasPrefix(at.Why, "on the deny list: ") {
					t.Errorf("%s is hidden by %+v", row, at)
				}
			}
		})
	}
}

// TestDenyListFiles: what is hidden is a file or a directory, and the mask has to be alike. Nothing is made for macOS.
func TestDenyListFiles(t *testing.T) {
	v := view(t, agent(t, "/home", ""))
	for name, file := range map[string]bool{
		"/etc/ssh": false, "/etc/sudoers": true, "/etc/shadow": true, "/etc/ssl/private": false,
		"/etc/gshadow": true, "/etc/sudoers.d": false,
		"/home/.ssh": false, "/home/.netrc": true, "/home/.config/gh": false, "/home/.git-credentials": true, "/home/.boto": true,
		"/home/.s3cfg": true, "/home/.pgpass": true, "/home/.my.cnf": true, "/home/.pypirc": true, "/home/.vault-token": true,
		"/home/.aws": false, "/home/.password-store": false,
	} {
		if at, ok := v.At(path(t, name)); !ok || at.File != file || at.NoParents {
			t.Errorf("%s: File is %v, want %v", name, at.File, file)
		}
	}
	for _, name := range keychains {
		if at, _ := v.At(path(t, name)); !at.NoParents {
			t.Errorf("directories are made for %s", name)
		}
	}
}

func TestDenyListHoldsWholeNames(t *testing.T) {
	v := view(t, agent(t, "/home", ""), "@workspace")
	for _, row := range slices.Concat(homeSecrets, keychains, homeAlike) {
		for _, name := range []string{row + "2", row + "-old", row + ".bak"} {
			if got := modeOf(v, path(t, name)); got != "writable" {
				t.Errorf("%s is %s", name, got)
			}
		}
	}
	expect(t, v, "/home/ssh writable", "/home/.SSH writable", "/home/ws/.ssh writable", "/home/.config writable",
		"/home/Library writable", "/etc/passwd outside", "/etc/ssl outside", "/etc/ssl/certs outside", "/etc/shadow- outside")
}

func TestDenyListCannotBeGranted(t *testing.T) {
	for _, row := range denyList {
		for _, name := range []string{row, row + "/x"} {
			holder := agent(t, "/home", "")
			holder.WriteDirs = paths(t, "/home")
			for _, tag := range []string{"@write:" + name, "@read:" + name} {
				_, err := decide(t, holder, tag)
				if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tag) || !strings.Contains(err.Error(), "deny list") {
					t.Errorf("%s: %v", tag, err)
				}
			}

			holder.WriteDirs, holder.ReadDirs = paths(t, name), paths(t, name)
			err := holder.Check()
			for _, field := range []string{"permissions.writeDirs", "permissions.readDirs"} {
				if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "deny list") {
					t.Errorf("Check with %s of %s: %v", field, name, err)
				}
			}
			if got := modeOf(holder.Held(), path(t, name)); got != "hidden" {
				t.Errorf("%s is %s when writeDirs and readDirs name it", name, got)
			}
			if err := agent(t, name, "").Check(); !errdefs.IsPermissionDenied(err) {
				t.Errorf("Check with the working directory %s: %v", name, err)
			}
		}
	}
}

// TestDenyListHoldsNoApp: a workspace below a denied path makes no app's directory that can be seen.
func TestDenyListHoldsNoApp(t *testing.T) {
	for _, row := range slices.Concat(homeSecrets, keychains, homeAlike) {
		for _, dir := range []string{row + "/apps/mail/data", row + "/apps/mail", row + "/x/apps/mail/data"} {
			s := agent(t, dir, "mail")
			if err := s.Check(); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "deny list") {
				t.Errorf("Check with an app's working directory %s: %v", dir, err)
			}
			if got := modeOf(s.Held(), path(t, dir)); got != "hidden" {
				t.Errorf("%s is %s", dir, got)
			}
		}
		s := agent(t, "/home", "")
		s.AppRoots = paths(t, row+"/apps")
		expect(t, view(t, s, "@workspace"), "/home/ws writable")
		if got := modeOf(s.Held(), path(t, row+"/apps")); got != "hidden" {
			t.Errorf("%s/apps is %s", row, got)
		}
	}
}

// all is the sandbox with network and events.
func all(s policy.Subject) policy.Subject {
	s.Network, s.Events = true, true
	return s
}
