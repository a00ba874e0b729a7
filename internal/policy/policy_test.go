package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

// TestView holds what a call sees against "Exec and Durable Process Permissions": no network and no
// write grants by default, reads but for the deny list, and what each tag adds.
func TestView(t *testing.T) {
	ws := agent(t, "/home/ws", "")
	ws.WriteDirs = paths(t, "/home/out", "/home/deep")
	tests := []struct {
		name string
		s    policy.Subject
		tags []string
		want []string
	}{
		{"zero permissions by default", ws, nil, []string{
			"/home readOnly", "/home/ws readOnly", "/home/ws/a.txt readOnly", "/home/out readOnly",
			"/home/.bashrc readOnly", "/tmp writable", "/tmp/out.txt writable"}},
		{"the image is left alone", ws, []string{"@workspace"}, []string{
			"/ outside", "/usr/bin/sh outside", "/etc/passwd outside", "/homework outside", "/tmpx outside", "/shared outside"}},
		{"@workspace opens the working directory", ws, []string{"@workspace"}, []string{
			"/home/ws writable", "/home/ws/a/b writable", "/home readOnly", "/home/out readOnly"}},
		{"... and no name that begins alike", ws, []string{"@workspace"}, []string{
			"/home/ws2 readOnly", "/home/w readOnly", "/home/ws.txt readOnly", "/home/ws-old/a readOnly"}},
		{"@write opens that subtree alone", ws, []string{"@write:/home/out"}, []string{
			"/home/out writable", "/home/out/a writable", "/home readOnly", "/home/ws readOnly", "/home/deep readOnly"}},
		{"... and no name that begins alike", ws, []string{"@write:/home/out"}, []string{
			"/home/out1 readOnly", "/home/out10/a readOnly", "/home/ou readOnly"}},
		{"@write opens a part of what is held", ws, []string{"@write:/home/deep/a"}, []string{
			"/home/deep/a writable", "/home/deep readOnly", "/home/deep/ab readOnly"}},
		{"@write of a part of the workspace", ws, []string{"@write:/home/ws/a"}, []string{
			"/home/ws/a writable", "/home/ws readOnly", "/home/ws/b readOnly"}},
		{"@read takes nothing away", ws, []string{"@workspace", "@read:/home/ws/a", "@read:/home/ws", "@read:/home"}, []string{
			"/home/ws writable", "/home/ws/a writable", "/home readOnly"}},
		{"@read of what is always writable", ws, []string{"@read:/tmp", "@read:/tmp/a"}, []string{
			"/tmp writable", "/tmp/a writable"}},
		{"@write of what is always writable", ws, []string{"@write:/tmp/a"}, []string{"/tmp writable", "/tmp/a writable"}},
		{"one grant in another", ws, []string{"@write:/home/deep/a", "@write:/home/deep"}, []string{
			"/home/deep writable", "/home/deep/a writable", "/home/deep/b writable", "/home readOnly"}},
		{"@network and @events change no path", all(ws), []string{"@network", "@events"}, []string{
			"/home readOnly", "/home/ws readOnly", "/tmp writable"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, view(t, tt.s, tt.tags...), tt.want...) })
	}
}

func TestDecisionIsWhatIsAskedFor(t *testing.T) {
	s := all(agent(t, "/home", ""))
	tests := []struct {
		tags            []string
		network, events bool
	}{
		{nil, false, false},
		{[]string{"@workspace"}, false, false},
		{[]string{"@network"}, true, false},
		{[]string{"@events"}, false, true},
		{[]string{"@events", "@network"}, true, true},
	}
	for _, tt := range tests {
		d, err := decide(t, s, tt.tags...)
		if err != nil || d.Network != tt.network || d.Events != tt.events {
			t.Errorf("%q: network %v, events %v, %v", tt.tags, d.Network, d.Events, err)
		}
		if want := len(tt.tags) == 1 && tt.tags[0] == "@workspace"; d.View.HomeWritable() != want {
			t.Errorf("%q: HomeWritable is %v", tt.tags, !want)
		}
	}
}

// TestTagsBeyondThePermissions: "Tags must be a subset of your current granted permissions".
func TestTagsBeyondThePermissions(t *testing.T) {
	nothing := agent(t, "/home/ws", "")
	some := all(agent(t, "/home/ws", ""))
	some.WriteDirs, some.ReadDirs = paths(t, "/home/a"), paths(t, "/mnt/data/part")
	some.Mounts = []policy.Mount{{Target: path(t, "/mnt/data")}, {Target: path(t, "/mnt/data2")}}
	tests := []struct {
		name string
		s    policy.Subject
		tags []string
		says []string // the tag, then what is held
	}{
		{"network", nothing, []string{"@network"}, []string{"@network is not granted", "it holds @workspace"}},
		{"events", nothing, []string{"@events"}, []string{"@events is not granted", "it holds @workspace"}},
		{"among tags that are held", nothing, []string{"@workspace", "@network", "@read:/home"}, []string{"@network is not granted"}},
		{"the home", nothing, []string{"@write:/home"}, []string{"@write:/home is not granted", "it holds @workspace"}},
		{"beside the workspace", nothing, []string{"@write:/home/ws2"}, []string{"@write:/home/ws2 is not granted"}},
		{"the root", nothing, []string{"@write:/"}, []string{"@write:/ is not granted"}},
		{"the image", nothing, []string{"@write:/usr/local"}, []string{"@write:/usr/local is not granted"}},
		{"the image read", nothing, []string{"@read:/usr/local"}, []string{"@read:/usr/local is not granted"}},
		{"no mount", nothing, []string{"@read:/mnt/data"}, []string{"@read:/mnt/data is not granted"}},
		{"the home of another", nothing, []string{"@read:/data/users/user10/home"}, []string{"@read:/data/users/user10/home is not granted"}},
		{"above what is held", some, []string{"@write:/home"}, []string{"@write:/home is not granted",
			"it holds @network, @events, @workspace, @write:/home/a, @read:/mnt/data/part"}},
		{"a name that begins like what is held", some, []string{"@write:/home/ab"}, []string{"@write:/home/ab is not granted"}},
		{"beside what may be read", some, []string{"@read:/mnt/data/other"}, []string{"@read:/mnt/data/other is not granted"}},
		{"above what may be read", some, []string{"@read:/mnt/data"}, []string{"@read:/mnt/data is not granted"}},
		{"a name that begins like what may be read", some, []string{"@read:/mnt/data/part10"}, []string{"@read:/mnt/data/part10 is not granted"}},
		{"a mount that is not held", some, []string{"@read:/mnt/data2"}, []string{"@read:/mnt/data2 is not granted"}},
		{"written what may be read", some, []string{"@write:/mnt/data/part"}, []string{"@write:/mnt/data/part is not granted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.s.Check(); err != nil {
				t.Fatal(err)
			}
			d, err := decide(t, tt.s, tt.tags...)
			if !errdefs.IsPermissionDenied(err) {
				t.Fatalf("Decide(%q): %v", tt.tags, err)
			}
			for _, says := range tt.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the message lacks %q: %v", says, err)
				}
			}
			if d.Network || d.Events || len(d.View.Regions()) > 0 {
				t.Errorf("a decision comes with the error: %+v", d)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	mounts := []policy.Mount{{Target: path(t, "/mnt/rw")}, {Target: path(t, "/mnt/ro"), ReadOnly: true}}
	tests := []struct {
		name              string
		workingDir        string
		writeDirs, toRead []string
		says              []string // none when all is well
	}{
		{"the home", "/home", nil, nil, nil},
		{"in the home", "/home/ws", []string{"/home", "/home/a", "/tmp/x"}, []string{"/home/b"}, nil},
		{"mounts", "/home", []string{"/mnt/rw", "/mnt/rw/a"}, []string{"/mnt/ro/a", "/mnt/rw"}, nil},
		{"a working directory in /tmp", "/tmp", nil, nil, []string{`permissions.workingDir "/tmp" is outside of /home`}},
		{"a working directory in a mount", "/mnt/rw", []string{"/mnt/rw"}, nil, []string{`permissions.workingDir "/mnt/rw" is outside of /home`}},
		{"a working directory that begins like the home", "/homework", nil, nil, []string{`"/homework" is outside of /home`}},
		{"the root", "/", []string{"/"}, []string{"/"}, []string{"permissions.workingDir", "permissions.writeDirs", "permissions.readDirs"}},
		{"the image", "/home", []string{"/usr"}, []string{"/opt"}, []string{`writeDirs: "/usr" is in no mount`, `readDirs: "/opt" is in no mount`}},
		{"no such mount", "/home", nil, []string{"/mnt/rw2"}, []string{`readDirs: "/mnt/rw2" is in no mount`}},
		{"writing to a mount that is read-only", "/home", []string{"/mnt/ro/a"}, nil, []string{`permissions.writeDirs: "/mnt/ro/a" is in a mount that is read-only`}},
		{"writing to the skills", "/home", []string{"/shared/skills"}, nil, []string{`"/shared/skills" cannot be granted: the user's skills`}},
		{"all faults at once", "/home/apps", []string{"/home/.ssh", "/home/ok", "/sbin"}, []string{"/home/apps/x", "/lib"}, []string{
			`workingDir: "/home/apps" cannot`, `writeDirs: "/home/.ssh" cannot`, `writeDirs: "/sbin"`, `readDirs: "/home/apps/x" cannot`, `readDirs: "/lib"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := agent(t, tt.workingDir, "")
			s.Mounts, s.HasSkills = mounts, true
			s.WriteDirs, s.ReadDirs = paths(t, tt.writeDirs...), paths(t, tt.toRead...)
			err := s.Check()
			if (err == nil) != (len(tt.says) == 0) || (err != nil && !errdefs.IsPermissionDenied(err)) {
				t.Fatalf("Check: %v", err)
			}
			for _, says := range tt.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the message lacks %q: %v", says, err)
				}
			}
			if got := len(faults(err)); got != len(tt.says) {
				t.Errorf("there are %d faults, want %d: %v", got, len(tt.says), err)
			}
		})
	}
}

func TestMounts(t *testing.T) {
	s := agent(t, "/home", "")
	s.HasSkills = true
	s.Mounts = []policy.Mount{
		{Target: path(t, "/mnt/rw")}, {Target: path(t, "/mnt/ro"), ReadOnly: true}, {Target: path(t, "/mnt/secret")},
	}
	s.WriteDirs, s.ReadDirs = paths(t, "/mnt/rw"), paths(t, "/mnt/rw", "/mnt/ro")
	tests := []struct {
		name string
		tags []string
		want []string
	}{
		{"not visible without a grant", []string{"@workspace"}, []string{
			"/mnt outside", "/mnt/rw outside", "/mnt/ro outside", "/mnt/secret outside"}},
		{"skills are always there", nil, []string{
			"/shared/skills readOnly", "/shared/skills/a/SKILL.md readOnly", "/shared outside", "/shared/skills2 outside"}},
		{"@read", []string{"@read:/mnt/ro"}, []string{"/mnt/ro readOnly", "/mnt/ro/a readOnly", "/mnt outside", "/mnt/rw outside"}},
		{"@read of a part", []string{"@read:/mnt/ro/part"}, []string{
			"/mnt/ro/part readOnly", "/mnt/ro/part/a readOnly", "/mnt/ro outside", "/mnt/ro/part2 outside"}},
		{"@read of what may be written", []string{"@read:/mnt/rw"}, []string{"/mnt/rw readOnly"}},
		{"@write", []string{"@write:/mnt/rw"}, []string{"/mnt/rw writable", "/mnt/rw/a writable", "/mnt/ro outside"}},
		{"@write of a part", []string{"@write:/mnt/rw/part"}, []string{"/mnt/rw/part writable", "/mnt/rw outside"}},
		{"@write of a part and @read of all", []string{"@read:/mnt/rw", "@write:/mnt/rw/part"}, []string{
			"/mnt/rw readOnly", "/mnt/rw/part writable", "/mnt/rw/part2 readOnly"}},
		{"@read of the skills", []string{"@read:/shared/skills/a"}, []string{"/shared/skills/a readOnly", "/shared/skills readOnly"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, view(t, s, tt.tags...), tt.want...) })
	}
	expect(t, view(t, agent(t, "/home", "")), "/shared/skills outside")

	for _, tag := range []string{
		"@write:/mnt/ro", "@write:/mnt/ro/a", "@write:/shared/skills", "@write:/shared/skills/a",
		"@read:/mnt", "@write:/mnt", "@read:/mnt/secret", "@write:/mnt/secret/a", "@read:/mnt/rw2",
	} {
		if _, err := decide(t, s, tag); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tag+" is not granted") {
			t.Errorf("%s: %v", tag, err)
		}
	}
}

// A name that is held stands for whoever starts the process, and one that is held only as "*" for the sandbox's own.
func TestProcesses(t *testing.T) {
	for _, tt := range []struct {
		held, asked []string
		want        []policy.Process
		refused     string
	}{
		{nil, nil, nil, ""},
		{[]string{"web", "*"}, nil, nil, ""},
		{[]string{"web"}, []string{"web", "web"}, []policy.Process{{Name: "web"}}, ""},
		{[]string{"web", "*"}, []string{"web", "db", "*"}, []policy.Process{{Name: "*", Own: true}, {Name: "db", Own: true}, {Name: "web"}}, ""},
		{[]string{"web"}, []string{"db"}, nil, "@process:db is not granted to this sandbox; it holds @workspace, @process:web"},
		{[]string{"web"}, []string{"*"}, nil, "@process:* is not granted"},
		{nil, []string{"web"}, nil, "@process:web is not granted"},
	} {
		s := policy.Subject{Permissions: policy.Permissions{WorkingDir: policy.Home, Processes: tt.held}}
		got, err := s.Decide(policy.Grants{Processes: tt.asked})
		if tt.refused != "" {
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%q of %q: %v", tt.asked, tt.held, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Processes, tt.want) {
			t.Errorf("%q of %q: %+v, %v", tt.asked, tt.held, got.Processes, err)
		}
	}
	s := policy.Subject{Permissions: policy.Permissions{WorkingDir: policy.Home, Processes: []string{"web", ""}}}
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "permissions.processes[1]") {
		t.Errorf("%v", err)
	}
	s.Processes = slices.Repeat([]string{"web"}, 257)
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "permissions.processes has 257 names") {
		t.Errorf("%v", err)
	}
}

// A call has those credentials that it asks for and its sandbox holds, each once, and no others.
func TestSecrets(t *testing.T) {
	for _, tt := range []struct {
		held, asked, want []string
		refused           string
	}{
		{nil, nil, nil, ""},
		{[]string{"github", "npm"}, nil, nil, ""},
		{[]string{"github", "npm"}, []string{"npm", "github", "npm"}, []string{"github", "npm"}, ""},
		{[]string{"github"}, []string{"npm"}, nil, "@secret:npm is not granted to this sandbox; it holds @workspace, @secret:github"},
		{[]string{"github"}, []string{"github", "git"}, nil, "@secret:git is not granted"},
		{nil, []string{"github"}, nil, "@secret:github is not granted to this sandbox; it holds @workspace"},
	} {
		s := policy.Subject{Permissions: policy.Permissions{WorkingDir: policy.Home, Secrets: tt.held}}
		got, err := s.Decide(policy.Grants{Secrets: tt.asked})
		if tt.refused != "" {
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), tt.refused) || got.Secrets != nil {
				t.Errorf("%q of %q: %q, %v", tt.asked, tt.held, got.Secrets, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Secrets, tt.want) {
			t.Errorf("%q of %q: %q, %v", tt.asked, tt.held, got.Secrets, err)
		}
	}
	s := policy.Subject{Permissions: policy.Permissions{WorkingDir: policy.Home, Network: true, Secrets: []string{"github"}}}
	if got := s.DecideAll(); got.Secrets != nil {
		t.Errorf("a machine has %q", got.Secrets)
	}
	s.Secrets = []string{"github", "*"}
	if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "permissions.secrets[1]") || strings.Contains(err.Error(), "secrets[0]") {
		t.Errorf("%v", err)
	}
	s.Secrets = slices.Repeat([]string{"github"}, 257)
	if err := s.Check(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "permissions.secrets has 257 names") {
		t.Errorf("%v", err)
	}
}
