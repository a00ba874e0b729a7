package pathmap_test

import (
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/pathmap"
)

func TestParse(t *testing.T) {
	longest := "/" + strings.Repeat("a", pathmap.MaxLen-1)
	tests := []struct {
		name  string
		path  string
		fault string // "" when the path is good
	}{
		{"root", "/", ""},
		{"home", "/home", ""},
		{"tab and newline", "/home/a\tb\nc", ""},
		{"bytes that are not UTF-8", "/home/\xff\xfe", ""},
		{"UTF-8", "/home/übung", ""},
		{"DEL is not in the list of the control characters", "/home/\x7f", ""},
		{"dots that are not . or ..", "/home/.../..a/.b", ""},
		{"spaces", "/home/ ", ""},
		{"longest", longest, ""},
		{"empty", "", "is empty"},
		{"relative", "home", "is not absolute"},
		{"dot", ".", "is not absolute"},
		{"tilde", "~/x", "is not absolute"},
		{"NUL", "/home\x00/x", "control character 0x00 at byte 5"},
		{"carriage return", "/home\r", "control character 0x0d"},
		{"escape", "/\x1b[31m", "control character 0x1b"},
		{"too long", longest + "a", "has 4097 bytes, more than 4096"},
		{"trailing slash", "/home/", "is not clean"},
		{"double slash", "/home//x", "is not clean"},
		{"two slashes in front", "//home", "is not clean"},
		{"dot inside", "/home/./x", "is not clean"},
		{"dot dot inside", "/home/../etc", "is not clean"},
		{"dot dot at the end", "/home/..", "is not clean"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, hostErr := pathmap.ParseHost(tt.path)
			inside, insideErr := pathmap.ParseContainer(tt.path)
			if tt.fault == "" {
				if hostErr != nil || host.String() != tt.path {
					t.Errorf("ParseHost = %q, %v", host, hostErr)
				}
				if insideErr != nil || inside.String() != tt.path {
					t.Errorf("ParseContainer = %q, %v", inside, insideErr)
				}
				return
			}
			for _, err := range []error{hostErr, insideErr} {
				if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.fault) {
					t.Errorf("error is %v, want an invalid argument that says %q", err, tt.fault)
				}
			}
			if !host.IsZero() || !inside.IsZero() {
				t.Errorf("a refused path is not zero: %q, %q", host, inside)
			}
		})
	}
}

func TestParseHostErrorHidesThePath(t *testing.T) {
	const secret = "/data/users/alice/../bob"
	_, err := pathmap.ParseHost(secret)
	if strings.Contains(err.Error(), "alice") {
		t.Errorf("the host path leaks: %v", err)
	}
}

func TestLongContainerPathIsCutInTheMessage(t *testing.T) {
	_, err := pathmap.ParseContainer(strings.Repeat("a", 1<<20))
	if len(err.Error()) > 1000 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
}

func TestResolve(t *testing.T) {
	tests := []struct{ dir, name, want string }{
		{"/home", "", "/home"},
		{"/home", ".", "/home"},
		{"/home", "x", "/home/x"},
		{"/home", "x/", "/home/x"},
		{"/home", "./x//y", "/home/x/y"},
		{"/home/a", "../b", "/home/b"},
		{"/home", "../../../etc", "/etc"},
		{"/home", "/tmp/out.txt", "/tmp/out.txt"},
		{"/home", "/home/a/../../etc/", "/etc"},
		{"/", "x", "/x"},
		{"/", "..", "/"},
		{"/home", "~", "/home/~"},
	}
	for _, tt := range tests {
		got, err := container(t, tt.dir).Resolve(tt.name)
		if err != nil || got.String() != tt.want {
			t.Errorf("%s: Resolve(%q) = %q, %v, want %q", tt.dir, tt.name, got, err, tt.want)
		}
	}

	bad := []string{"a\x00b", "a\x00/..", "\x1b/../x", strings.Repeat("a/../", 1000), strings.Repeat("a", 4093)}
	for _, name := range bad {
		if got, err := container(t, "/home").Resolve(name); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Resolve(%.20q) = %q, %v", name, got, err)
		}
	}
	if _, err := (pathmap.ContainerPath{}).Resolve("/home"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the zero path resolves: %v", err)
	}
}

func TestWithin(t *testing.T) {
	tests := []struct {
		path, dir string
		want      bool
	}{
		{"/home", "/home", true},
		{"/home/x", "/home", true},
		{"/home/x/y", "/home", true},
		{"/home", "/home/x", false},
		{"/homework", "/home", false},
		{"/home/user10", "/home/user1", false},
		{"/home/user1/0", "/home/user1", true},
		{"/etc", "/home", false},
		{"/etc", "/", true},
		{"/", "/", true},
		{"/", "/home", false},
		{"/HOME/x", "/home", false},
	}
	for _, tt := range tests {
		if got := container(t, tt.path).Within(container(t, tt.dir)); got != tt.want {
			t.Errorf("%q within %q = %v, want %v", tt.path, tt.dir, got, tt.want)
		}
	}

	var zero pathmap.ContainerPath
	home := container(t, "/home")
	if zero.Within(home) || home.Within(zero) || zero.Within(zero) {
		t.Error("the zero path is within something, or holds something")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "/", "/home/x", "/home/../etc", "/a\x00", "x", "/\xff", "//", "/a/.", "/\t\n"} {
		f.Add(seed)
	}
	root := container(f, "/")
	f.Fuzz(func(t *testing.T, name string) {
		inside, err := pathmap.ParseContainer(name)
		host, hostErr := pathmap.ParseHost(name)
		if (err == nil) != (hostErr == nil) {
			t.Fatalf("the parsers disagree: %v, %v", err, hostErr)
		}
		if resolved, err := root.Resolve(name); err == nil {
			if again, err := pathmap.ParseContainer(resolved.String()); err != nil || again != resolved {
				t.Fatalf("Resolve made %q, which does not parse: %v", resolved, err)
			}
		}
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !errdefs.IsInvalidArgument(hostErr) {
				t.Fatalf("class of %v, %v", err, hostErr)
			}
			return
		}
		if inside.String() != name || host.String() != name {
			t.Fatalf("%q parsed as %q, %q", name, inside, host)
		}
		if !path.IsAbs(name) || path.Clean(name) != name || len(name) > pathmap.MaxLen || strings.ContainsAny(name, "\x00\r\x1b") {
			t.Fatalf("%q was accepted", name)
		}
		if !inside.Within(root) {
			t.Fatalf("%q is not within the root", name)
		}
	})
}

func container(t testing.TB, name string) pathmap.ContainerPath {
	t.Helper()
	p, err := pathmap.ParseContainer(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func host(t testing.TB, name string) pathmap.HostPath {
	t.Helper()
	p, err := pathmap.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
