package policy_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

// TestAppsAreIsolated is "App directory isolation", from both sides.
func TestAppsAreIsolated(t *testing.T) {
	other := agent(t, "/home/ws", "") // no app, in a workspace that has apps
	other.WriteDirs = paths(t, "/home")
	other.AppRoots = paths(t, "/home/team/apps", "/home/deep/er/apps")
	mail := agent(t, "/home/ws", "mail")
	mail.AppRoots = other.AppRoots
	inData := agent(t, "/home/ws/apps/mail/data/x", "mail")
	inOwn := agent(t, "/home/ws/apps/mail", "mail")
	greedy := mail
	greedy.WriteDirs = paths(t, "/home", "/home/ws")

	hidden := []string{ // from those who are no app
		"/home/apps empty", "/home/apps/mail empty", "/home/apps/mail/data/a empty",
		"/home/ws/apps empty", "/home/ws/apps/mail empty", "/home/ws/apps/mail/data empty",
		"/home/team/apps empty", "/home/team/apps/chat/data empty", "/home/deep/er/apps/x empty",
	}
	own := []string{ // of the app
		"/home/ws/apps/mail readOnly", "/home/ws/apps/mail/src/a.ts readOnly", "/home/ws/apps/mail/data writable",
		"/home/ws/apps/mail/data/x/y writable", "/home/ws/apps/mail/data2 readOnly",
		"/home/ws/apps empty", "/home/ws/apps/mail2 empty", "/home/ws/apps/chat empty", "/home/ws/apps/chat/data empty",
		"/home/apps empty", "/home/apps/mail empty", "/home/apps/mail/data empty",
	}
	tests := []struct {
		name string
		s    policy.Subject
		tags []string
		want [][]string
	}{
		{"another agent without grants", other, nil, [][]string{hidden, {"/home/appstore readOnly", "/home/app readOnly"}}},
		{"another agent with @workspace", other, []string{"@workspace"}, [][]string{hidden, {"/home/ws writable"}}},
		{"another agent that writes to the home", other, []string{"@write:/home", "@workspace"}, [][]string{
			hidden, {"/home/team writable", "/home/ws/appstore writable", "/home/ws/x/apps writable"}}},
		{"an app without grants", mail, nil, [][]string{own, {
			"/home/ws readOnly", "/home/ws/notes readOnly", "/home/team/apps/mail empty", "/home/deep/er/apps/mail empty"}}},
		{"an app whose working directory is its data", inData, []string{"@workspace"}, [][]string{own, {"/home/ws readOnly"}}},
		{"an app whose working directory is its own", inOwn, nil, [][]string{own, {"/home/ws readOnly"}}},
		{"an app that may write to the workspace", greedy, []string{"@workspace", "@write:/home"}, [][]string{own, {
			"/home/ws/notes writable", "/home/team/apps/mail/data empty"}}},
		{"an app that names its data", mail, []string{"@write:/home/ws/apps/mail/data", "@write:/home/ws/apps/mail/data/a",
			"@read:/home/ws/apps/mail"}, [][]string{own}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := view(t, tt.s, tt.tags...)
			for _, lines := range tt.want {
				expect(t, v, lines...)
			}
		})
	}
}

func TestAppTagsBeyondItsOwn(t *testing.T) {
	mail := agent(t, "/home/ws", "mail")
	other := agent(t, "/home/ws", "")
	other.WriteDirs = paths(t, "/home")
	tests := []struct {
		name string
		s    policy.Subject
		tag  string
		says string
	}{
		{"the workspace", mail, "@workspace", "an app writes to /home/ws/apps/mail/data alone"},
		{"the home", mail, "@write:/home", "it holds no permissions"},
		{"its own directory", mail, "@write:/home/ws/apps/mail", "the app's own directory"},
		{"its own code", mail, "@write:/home/ws/apps/mail/src", "the app's own directory"},
		{"a name that begins like its data", mail, "@write:/home/ws/apps/mail/data2", "the app's own directory"},
		{"another app", mail, "@read:/home/ws/apps/chat", "apps are not shown to other agents"},
		{"another app's data", mail, "@write:/home/ws/apps/chat/data", "apps are not shown to other agents"},
		{"an app whose name begins alike", mail, "@read:/home/ws/apps/mail2", "apps are not shown to other agents"},
		{"all apps", mail, "@read:/home/ws/apps", "apps are not shown to other agents"},
		{"no app reads one", other, "@read:/home/ws/apps/mail", "apps are not shown to other agents"},
		{"no app writes to one", other, "@write:/home/apps/mail/data", "apps are not shown to other agents"},
		{"no app makes one", other, "@write:/home/apps", "apps are not shown to other agents"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decide(t, tt.s, tt.tag)
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tt.tag+" is not granted") || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Decide(%s): %v, want a refusal that says %q", tt.tag, err, tt.says)
			}
		})
	}
}

// TestWorkspaceOfAnApp: "can write only to <workspace>/apps/<app-id>/data", so @workspace is held where
// the working directory is there, or where writeDirs say so.
func TestWorkspaceOfAnApp(t *testing.T) {
	tests := []struct {
		workingDir string
		writeDirs  []string
		held       bool
	}{
		{"/home", nil, false},
		{"/home/ws", nil, false},
		{"/home/apps/mail", nil, false},
		{"/home/apps/mail/src", nil, false},
		{"/home/apps/mail/data2", nil, false},
		{"/home/apps/mail/data", nil, true},
		{"/home/apps/mail/data/a", nil, true},
		{"/home/ws", []string{"/home/ws"}, true},
		{"/home/ws", []string{"/home"}, true},
		{"/home/ws", []string{"/home/ws/a", "/home/w"}, false},
		// The app's own directory cannot be written whatever writeDirs say.
		{"/home/apps/mail", []string{"/home"}, false},
		{"/home/apps/mail/src", []string{"/home"}, false},
	}
	for _, tt := range tests {
		s := agent(t, tt.workingDir, "mail")
		s.WriteDirs = paths(t, tt.writeDirs...)
		if err := s.Check(); err != nil {
			t.Errorf("%s: Check: %v", tt.workingDir, err)
		}
		d, err := decide(t, s, "@workspace")
		if (err == nil) != tt.held || (err != nil && !errdefs.IsPermissionDenied(err)) {
			t.Errorf("@workspace in %s with writeDirs %q: %v, want held: %v", tt.workingDir, tt.writeDirs, err, tt.held)
			continue
		}
		if got := modeOf(d.View, path(t, tt.workingDir)); tt.held && got != "writable" {
			t.Errorf("%s is %s with @workspace", tt.workingDir, got)
		}
		if _, err := decide(t, s, "@network"); strings.Contains(err.Error(), "@workspace") != tt.held {
			t.Errorf("%s with writeDirs %q: what is held: %v", tt.workingDir, tt.writeDirs, err)
		}
	}
}

// TestWorkspaceThatBecameAnApps: another sandbox that is registered later can make the directory that
// this one works in a directory of apps.
func TestWorkspaceThatBecameAnApps(t *testing.T) {
	s := agent(t, "/home/ws/apps/notes", "")
	s.AppRoots = paths(t, "/home/ws/apps")
	if err := s.Check(); !errdefs.IsPermissionDenied(err) {
		t.Errorf("Check: %v", err)
	}
	if _, err := decide(t, s, "@workspace"); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "apps are not shown") {
		t.Errorf("@workspace: %v", err)
	}
}

func TestPermissionsInsideOtherApps(t *testing.T) {
	tests := []struct {
		workingDir, app string
		writeDirs, read []string
	}{
		{"/home", "mail", []string{"/home/apps/chat"}, nil},
		{"/home", "mail", []string{"/home/apps/chat/data"}, nil},
		{"/home", "mail", []string{"/home/apps"}, nil},
		{"/home", "mail", []string{"/home/apps/mail"}, nil},
		{"/home", "mail", nil, []string{"/home/apps/chat"}},
		{"/home", "mail", []string{"/home/apps/mail2"}, nil},
		{"/home/ws", "mail", []string{"/home/apps/mail/data"}, nil},
		{"/home", "", []string{"/home/apps/chat/data"}, nil},
		{"/home", "", nil, []string{"/home/apps/chat"}},
		{"/home/ws", "", []string{"/home/ws/apps"}, nil},
		{"/home/apps", "mail", nil, nil},
		{"/home/apps/chat/data", "mail", nil, nil},
		{"/home/apps/chat/data", "", nil, nil},
		// A workspace in another app does not make a part of it one's own.
		{"/home/apps/chat/data/apps/mail", "mail", nil, nil},
		{"/home/apps/chat/data/apps/mail/data", "mail", nil, nil},
		{"/home/apps/mail2/apps/mail/data", "mail", nil, nil},
	}
	for _, tt := range tests {
		s := agent(t, tt.workingDir, tt.app)
		s.WriteDirs, s.ReadDirs = paths(t, tt.writeDirs...), paths(t, tt.read...)
		if err := s.Check(); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "app") {
			t.Errorf("app %q in %s with writeDirs %q and readDirs %q: %v", tt.app, tt.workingDir, tt.writeDirs, tt.read, err)
		}
	}
}

func TestWorkspace(t *testing.T) {
	tests := []struct{ workingDir, app, want string }{
		{"/home", "", "/home"},
		{"/home/ws", "", "/home/ws"},
		{"/home/apps/mail", "", "/home/apps/mail"},
		{"/home", "mail", "/home"},
		{"/home/ws", "mail", "/home/ws"},
		{"/home/apps/mail", "mail", "/home"},
		{"/home/apps/mail/data", "mail", "/home"},
		{"/home/ws/apps/mail/data/deep", "mail", "/home/ws"},
		{"/home/apps/mail/data/apps/mail/data", "mail", "/home"},
		{"/home/apps/mail2", "mail", "/home/apps/mail2"},
		{"/home/apps/mail2/x", "mail", "/home/apps/mail2/x"},
		{"/home/myapps/mail", "mail", "/home/myapps/mail"},
		{"/home/apps/apps/data", "apps", "/home"},
		{"/home/apps/data", "data", "/home"},
		{"/home/apps/data/data", "data", "/home"},
	}
	for _, tt := range tests {
		p := agent(t, tt.workingDir, tt.app).Permissions
		if got := p.Workspace().String(); got != tt.want {
			t.Errorf("the workspace of app %q in %s is %s, want %s", tt.app, tt.workingDir, got, tt.want)
		}
		if got := p.AppRoot().String(); got != tt.want+"/apps" {
			t.Errorf("the apps of app %q in %s are in %s", tt.app, tt.workingDir, got)
		}
	}
}

func TestParseAppID(t *testing.T) {
	for _, name := range []string{"a", "A9", "mail", "mail-2", "mail_2.0", "0", "a..b", strings.Repeat("a", 128)} {
		if got, err := policy.ParseAppID(name); err != nil || got.String() != name || got.IsZero() {
			t.Errorf("ParseAppID(%q) = %q, %v", name, got, err)
		}
	}
	if got, err := policy.ParseAppID(""); err != nil || !got.IsZero() {
		t.Errorf("ParseAppID of nothing = %q, %v", got, err)
	}
	for _, name := range []string{
		".", "..", ".hidden", "-a", "_a", "a/b", "/a", "a/", "../a", "a b", "a\n", "\na", "a\x00", "ä", "a:b", "a*", strings.Repeat("a", 129),
	} {
		if got, err := policy.ParseAppID(name); !errdefs.IsInvalidArgument(err) || !got.IsZero() {
			t.Errorf("ParseAppID(%q) = %q, %v", name, got, err)
		}
	}
}
