package dockerexec

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fullSpec is a Spec in which no field is empty.
func fullSpec() Spec {
	return Spec{
		Platform: Platform{
			Instance: "i-1", DataDir: "/var/lib/sandboxd", ImageID: "sha256:aa", Agent: "/var/lib/sandboxd/agent/sandbox-agent-00", Runtime: "runsc", EventsRuntime: "runsc-events", MaskDir: "/var/lib/sandboxd/masks", Network: "daycare",
			ReadOnlyRoot: true, Unconfined: true, UserNamespaces: true, CapDrop: []string{"ALL", "KILL"}, CapAdd: []string{"CHOWN", "FOWNER"},
			Limits: Limits{NanoCPUs: 4e9, Memory: 16 << 30, Pids: 1024, OpenFiles: 4096, Shm: 1 << 30, Tmp: 2 << 30, Run: 64 << 20, VarTmp: 3 << 30},
		},
		User: "alice", UID: 1000, GID: 1001, SpoolDir: "/data/users/alice",
		Mounts: []Mount{
			{Source: "/data/users/alice/home", Target: "/home"},
			{Source: "/data/skills", Target: "/shared/skills", ReadOnly: true, ID: FileID{Dev: 1, Ino: 2, Since: 3}, Verify: true},
		},
		Masks: []Mask{{Target: "/home/.netrc", File: true, Holds: []string{"x"}}, {Target: "/home/.ssh", Place: "/data/users/alice/home/.ssh", ID: FileID{Dev: 1, Ino: 3, Since: 4}}},
		Pins:  []Pin{{Place: "/data/users/alice/home/.config", Target: "/home/.config"}},
		Links: []Link{{Target: "/home/notes", ID: FileID{Dev: 1, Ino: 4, Since: 5}}},

		Process: Process{ID: "p-1", Dir: "/data/users/alice/processes/p-1"},
		Egress: Egress{Profile: "isolated", Domains: []string{"*.example.com", "example.org"}, Denied: []string{"a.example.com", "b.example.com"},
			Addresses: []string{"192.0.2.0/24"}, DeniedAddresses: []string{"192.0.2.7"}},
	}
}

// TestRecordedFingerprint compares with the labels of a container that runs since before an update: with any other
// fingerprint or text it would not be adopted.
func TestRecordedFingerprint(t *testing.T) {
	const fingerprint, text = "2163ec54a6a107250fa0890ae5791162d83a59b12db648cdbd85197fcdb7ca25", "00fa8f64990dbc8712ee090108abaa0d49bd27c0430dfa1c4a860d2bfdb79780"
	if got := fullSpec().Fingerprint(); got != fingerprint {
		t.Errorf("the fingerprint is %s, not %s", got, fingerprint)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(fullSpec().text()))); got != text {
		t.Errorf("the label's text has the sum %s, not %s", got, text)
	}
}

func TestOrderAndEmptinessDoNotMatter(t *testing.T) {
	want := fullSpec().Fingerprint()
	s := fullSpec()
	slices.Reverse(s.Mounts)
	slices.Reverse(s.Platform.CapDrop)
	slices.Reverse(s.Platform.CapAdd)
	before := slices.Clone(s.Mounts)
	if got := s.Fingerprint(); got != want {
		t.Errorf("in another order: %s, not %s", got, want)
	}
	if !slices.Equal(before, s.Mounts) {
		t.Error("Fingerprint has changed its Spec")
	}
	none, empty := Spec{}, Spec{Mounts: []Mount{}, Platform: Platform{CapDrop: []string{}, CapAdd: []string{}}}
	if none.Fingerprint() != empty.Fingerprint() || !none.Platform.equal(empty.Platform) {
		t.Error("nil and an empty list differ")
	}
}

// TestEveryFieldCounts changes each field in turn, found by reflection so that none is forgotten.
func TestEveryFieldCounts(t *testing.T) {
	linked := func() Spec {
		s := fullSpec()
		s.Symlinks = []Symlink{{Target: "/home/link", Text: "vault"}}
		s.Reaches = []Reach{{Name: "web", Sandbox: "box"}}
		s.Egress.Secrets = []string{"github"}
		return s
	}
	seen := map[Fingerprint]string{fullSpec().Fingerprint(): "no change", linked().Fingerprint(): "with a link"}
	for _, path := range leaves(reflect.TypeFor[Spec](), nil) {
		s := linked()
		name := change(t, reflect.ValueOf(&s).Elem(), path)
		fingerprint := s.Fingerprint()
		if other, known := seen[fingerprint]; known {
			t.Errorf("a change of %s has the fingerprint of %s", name, other)
		}
		seen[fingerprint] = name
		if changed, is := !s.Platform.equal(fullSpec().Platform), strings.HasPrefix(name, "Platform."); changed != is {
			t.Errorf("a change of %s makes another platform: %t", name, changed)
		}
	}
	for name, s := range map[string]Spec{
		"fewer mounts": func() Spec { s := fullSpec(); s.Mounts = s.Mounts[:1]; return s }(),
		"no mounts":    func() Spec { s := fullSpec(); s.Mounts = nil; return s }(),
		"no cap drop":  func() Spec { s := fullSpec(); s.Platform.CapDrop = nil; return s }(),
		"cap moved": func() Spec {
			s := fullSpec()
			s.Platform.CapAdd, s.Platform.CapDrop = s.Platform.CapDrop, s.Platform.CapAdd
			return s
		}(),
	} {
		if other, known := seen[s.Fingerprint()]; known {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
	}
}

// leaves are the paths to the fields that hold a value; those of a list go to its first element.
func leaves(of reflect.Type, path []int) [][]int {
	switch of.Kind() {
	case reflect.Struct:
		var all [][]int
		for i := range of.NumField() {
			all = append(all, leaves(of.Field(i).Type, append(slices.Clone(path), i))...)
		}
		return all
	case reflect.Slice:
		return leaves(of.Elem(), append(slices.Clone(path), 0))
	}
	return [][]int{path}
}

// change gives the field at a path another value and returns its name.
func change(t *testing.T, v reflect.Value, path []int) (name string) {
	t.Helper()
	for _, i := range path {
		if v.Kind() == reflect.Slice {
			// The lists of fullSpec are its own.
			name, v = fmt.Sprintf("%s[%d]", name, i), v.Index(i)
			continue
		}
		name, v = strings.TrimPrefix(name+"."+v.Type().Field(i).Name, "."), v.Field(i)
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	default:
		t.Fatalf("no way to change %s, which is a %s", name, v.Kind())
	}
	return name
}

func TestLabelsLeadBackToTheSpec(t *testing.T) {
	s := fullSpec()
	labels := s.labels()
	got, err := specFromLabels(labels)
	if err != nil {
		t.Fatal(err)
	}
	if got.Fingerprint() != s.Fingerprint() {
		t.Error("another fingerprint")
	}
	slices.Reverse(s.Mounts) // canonical order is by target
	slices.SortFunc(s.Mounts, func(a, b Mount) int { return strings.Compare(a.Target, b.Target) })
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if labels[labelUser] != "alice" || labels[labelInstance] != "i-1" {
		t.Errorf("%v", labels)
	}
}

// A container that is found again has the credentials that it was made with, and what it trusts.
func TestLabelsHaveTheCredentials(t *testing.T) {
	s := fullSpec()
	s.Process, s.Egress.Secrets, s.Bundle, s.BundleAt = Process{}, []string{"npm", "github"}, "/bundle", "/etc/ssl/cert.pem"
	got, err := specFromLabels(s.labels())
	if err != nil || !slices.Equal(got.Egress.Secrets, []string{"github", "npm"}) || got.Bundle != s.Bundle || got.BundleAt != s.BundleAt {
		t.Errorf("%+v, %v", got, err)
	}
	if party := got.candidate(got.Egress).Party; !slices.Equal(party.Egress.Secrets, []string{"github", "npm"}) {
		t.Errorf("on its network: %+v", party)
	}
	without := s
	without.Egress.Secrets = nil
	if without.Fingerprint() == s.Fingerprint() || without.ContainerName() == s.ContainerName() {
		t.Error("a call without them shares the container")
	}
}

func TestLabelsThatWereTamperedWith(t *testing.T) {
	for name, tamper := range map[string]func(map[string]string){
		"none":                 func(l map[string]string) { clear(l) },
		"no spec":              func(l map[string]string) { delete(l, labelSpec) },
		"no fingerprint":       func(l map[string]string) { delete(l, labelFingerprint) },
		"another fingerprint":  func(l map[string]string) { l[labelFingerprint] = strings.Repeat("0", 64) },
		"short fingerprint":    func(l map[string]string) { l[labelFingerprint] = l[labelFingerprint][:12] },
		"spec is no JSON":      func(l map[string]string) { l[labelSpec] = "alice" },
		"spec is cut":          func(l map[string]string) { l[labelSpec] = l[labelSpec][:100] },
		"spec of another user": func(l map[string]string) { l[labelSpec] = strings.ReplaceAll(l[labelSpec], "alice", "bob") },
		"read-only no more":    func(l map[string]string) { l[labelSpec] = strings.ReplaceAll(l[labelSpec], "true", "false") },
		"spec is another's":    func(l map[string]string) { l[labelSpec] = Spec{User: "bob"}.labels()[labelSpec] },
	} {
		labels := maps.Clone(fullSpec().labels())
		tamper(labels)
		if s, err := specFromLabels(labels); err == nil {
			t.Errorf("%s: read as %+v", name, s)
		}
	}
}

func TestContainerNames(t *testing.T) {
	s := fullSpec()
	if name := s.ContainerName(); name != "daycare-process-p-1" {
		t.Error(name)
	}
	s.Process, s.Persistent = Process{}, "s1"
	if name := s.ContainerName(); name != "daycare-lasting-s1" {
		t.Error(name)
	}
	s.Persistent = ""
	if name, want := s.ContainerName(), "daycare-sandbox-alice-"+string(s.Fingerprint())[:12]; name != want {
		t.Errorf("%s, want %s", name, want)
	}
}

// What a caller is told of a failed start has no path of the host, whoever's folder or disk it is on.
func TestErrorsHaveNoPathsOfTheHost(t *testing.T) {
	for message, want := range map[string]string{
		"mkdir /data/users/alice/home/x: permission denied":                                                     "mkdir /home/x: permission denied",
		"cannot write resolv.conf: open /var/lib/sandboxd/resolv.conf: is a directory":                          "cannot write resolv.conf: open (the service's folder)/resolv.conf: is a directory",
		"open /var/lib/sandboxd/masks/file: no such file or directory":                                          "open (a mask)/file: no such file or directory",
		"failed to create rwlayer: mkdir /var/lib/docker/overlay2/0a-init: no space left on device":             "failed to create rwlayer: mkdir (a path of the host): no space left on device",
		`failed: write "/mnt/a disk/containers/0a/.tmp": disk quota exceeded; write /mnt/b: input/output error`: `failed: write "(a path of the host): disk quota exceeded; write (a path of the host): input/output error`,
		"open /var/lib/sandboxd/image/trust-0a: no such file or directory":                                      "open /etc/ssl/cert.pem: no such file or directory",
		"write /data/users/alice/output: no space left on device":                                               "write (the user's folder)/output: no space left on device",
		`OCI runtime create failed: error mounting "/data/users/alice/home" to rootfs at "/home": open o_path procfd: open /var/lib/docker/overlay2/b2/merged/srv/secret: no such file or directory: unknown`: `OCI runtime create failed: error mounting "/home" to rootfs at "/home": open o_path procfd: open (a path of the host): no such file or directory: unknown`,
		"OCI runtime create failed: [/srv/a] is </srv/b>, source:/srv/c in /home:":                                       "OCI runtime create failed: [(a path of the host)] is <(a path of the host), source:(a path of the host) in /home:",
		`OCI runtime create failed: possibly malicious path detected -- refusing to operate on /srv/secret/sub: unknown`: `OCI runtime create failed: possibly malicious path detected -- refusing to operate on (a path of the host): unknown`,
		"exec: /bin/none: no such file or directory":                                                                     "exec: /bin/none: no such file or directory",
	} {
		s := fullSpec()
		s.Process.Dir, s.Bundle, s.BundleAt = "", "/var/lib/sandboxd/image/trust-0a", "/etc/ssl/cert.pem"
		if got := s.withoutHostPaths(message); got != want {
			t.Errorf("%s:\n%s, not\n%s", message, got, want)
		}
	}
}
