package registry

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/pathmap"
)

var (
	monday  = time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC)
	tuesday = monday.Add(24 * time.Hour)
)

func box(t *testing.T, id, user, dir string) Sandbox {
	t.Helper()
	var s Sandbox
	var err error
	if s.ID, err = ids.ParseSandbox(id); err != nil {
		t.Fatal(err)
	}
	if s.User, err = ids.ParseUser(user); err != nil {
		t.Fatal(err)
	}
	if s.WorkingDir, err = pathmap.ParseContainer(dir); err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB, dir string) *Registry {
	t.Helper()
	r, err := Open(dir, nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t *testing.T, r *Registry, s Sandbox, now time.Time) (Sandbox, bool) {
	t.Helper()
	got, created, err := r.Put(s, now)
	if err != nil {
		t.Fatal(err)
	}
	return got, created
}

// shown is a list in a form that reads.
func shown(list []Sandbox) []string {
	var all []string
	for _, s := range list {
		all = append(all, strings.Join([]string{
			s.ID.String(), s.User.String(), s.WorkingDir.String(), s.CreatedAt.Format("Mon"), s.UpdatedAt.Format("Mon"),
		}, " "))
	}
	return all
}

func TestRegistryKeepsWhatItIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sandboxes")
	r := open(t, dir)
	if _, created := put(t, r, box(t, "b", "alice", "/home"), monday); !created {
		t.Error("the first put of b is not new")
	}
	put(t, r, box(t, "a", "alice", "/home/x"), monday)
	put(t, r, box(t, "gone", "bob", "/home"), monday)
	if _, created := put(t, r, box(t, "a", "alice", "/home/y"), tuesday); created {
		t.Error("a replaced one is new")
	}
	if again, created := put(t, r, box(t, "b", "alice", "/home"), tuesday); created || !again.UpdatedAt.Equal(monday) {
		t.Errorf("a put that changes nothing: created %t, %v", created, again)
	}
	if _, _, err := r.Put(box(t, "a", "bob", "/home"), tuesday); !cerrdefs.IsConflict(err) || !strings.Contains(err.Error(), `"alice"`) {
		t.Errorf("another user's: %v", err)
	}
	gone := box(t, "gone", "bob", "/home").ID
	if err := r.Delete(gone); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(gone); !cerrdefs.IsNotFound(err) {
		t.Errorf("second delete: %v", err)
	}
	if _, err := r.Get(gone); !cerrdefs.IsNotFound(err) {
		t.Errorf("get of a deleted one: %v", err)
	}
	want := []string{"a alice /home/y Mon Tue", "b alice /home Mon Mon"}
	if diff := cmp.Diff(want, shown(r.List())); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if diff := cmp.Diff(want, shown(open(t, dir).List())); diff != "" {
		t.Errorf("after it was opened again: want (-), got (+):\n%s", diff)
	}
}

// A sandbox holds the credentials that it was registered with, also when it is read again, and others make it another one.
func TestCredentialsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sandboxes")
	r := open(t, dir)
	s := box(t, "a", "alice", "/home")
	s.Secrets = []string{"npm", "github"}
	put(t, r, s, monday)
	if again, _ := put(t, r, s, tuesday); !again.UpdatedAt.Equal(monday) {
		t.Errorf("the same credentials: %v", again)
	}
	for name, of := range map[string]*Registry{"at once": r, "opened again": open(t, dir)} {
		got, err := of.Get(s.ID)
		if held := got.PolicyPermissions().Secrets; err != nil || !slices.Equal(held, s.Secrets) {
			t.Errorf("%s: %q, %v", name, held, err)
		}
	}
	s.Secrets = []string{"npm"}
	if less, _ := put(t, r, s, tuesday); !less.UpdatedAt.Equal(tuesday) || !slices.Equal(less.Secrets, s.Secrets) {
		t.Errorf("fewer credentials: %v", less)
	}
}

func TestRecordsAreTheOwnersAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sandboxes")
	put(t, open(t, dir), box(t, "a", "alice", "/home"), monday)
	for name, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "a.json"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", filepath.Base(name), info.Mode(), err)
		}
	}
}

// TestDamagedRecordsAreSetAside puts a bad record beside a good one: the good one loads, the bad one
// is kept and named in the log.
func TestDamagedRecordsAreSetAside(t *testing.T) {
	for _, tt := range []struct{ name, text string }{
		{"empty", ""},
		{"no JSON", "hello"},
		{"no object", "[]"},
		{"a version that is not known", `{"version":3,"id":"bad","userId":"alice","workingDir":"/home"}`},
		{"no version", `{"id":"bad","userId":"alice","workingDir":"/home"}`},
		{"about another", `{"version":1,"id":"other","userId":"alice","workingDir":"/home"}`},
		{"bad user", `{"version":1,"id":"bad","userId":"../root","workingDir":"/home"}`},
		{"bad directory", `{"version":1,"id":"bad","userId":"alice","workingDir":"home/../.."}`},
		{"bad credential", `{"version":2,"id":"bad","userId":"alice","workingDir":"/home","secrets":["github","*"]}`},
		{"wrong type", `{"version":1,"id":"bad","userId":7,"workingDir":"/home"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, open(t, dir), box(t, "good", "alice", "/home"), monday)
			checkSetAside(t, dir, []byte(tt.text))
		})
	}
}

// checkSetAside opens a registry with a record bad.json of the given content.
func checkSetAside(t *testing.T, dir string, text []byte) {
	t.Helper()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r, err := Open(dir, nil, zerolog.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"good alice /home Mon Mon"}, shown(r.List())); diff != "" {
		t.Fatalf("with the record %q: want (-), got (+):\n%s", text, diff)
	}
	if kept, err := os.ReadFile(bad + ".damaged"); err != nil || !bytes.Equal(kept, text) {
		t.Fatalf("kept %q, %v", kept, err)
	}
	if !strings.Contains(log.String(), "bad.json.damaged") {
		t.Fatalf("log: %s", log.String())
	}
}

// TestRecordsCutAnywhere cuts a record at every byte, as a disk that loses its cache may.
func TestRecordsCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	put(t, r, box(t, "good", "alice", "/home"), monday)
	put(t, r, box(t, "bad", "alice", "/home/project"), monday)
	whole, err := os.ReadFile(filepath.Join(dir, "bad.json"))
	if err != nil {
		t.Fatal(err)
	}
	for length := range whole {
		checkSetAside(t, dir, whole[:length])
	}
}

// A crash may leave the temporary file of a write, whole or not.
func TestWriteThatACrashCutShort(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), box(t, "a", "alice", "/home"), monday)
	leftover := filepath.Join(dir, ".a.json0123456789")
	if err := os.WriteFile(leftover, []byte(`{"version":1,"id":"a","userId":"mallory","workingDir":"/home"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a alice /home Mon Mon"}, shown(open(t, dir).List())); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if _, err := os.Lstat(leftover); !os.IsNotExist(err) {
		t.Errorf("the leftover: %v", err)
	}
}

// A sandbox's id may look like the names that the registry gives its files.
func TestIDsThatLookLikeFiles(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	for _, id := range []string{"a", "a.json", "a.json.new", "a.new", "a.json.damaged"} {
		put(t, r, box(t, id, "alice", "/home"), monday)
	}
	if before, after := shown(r.List()), shown(open(t, dir).List()); len(after) != 5 || !cmp.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
}

func TestFolderThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sandboxes")
	r := open(t, dir)
	put(t, r, box(t, "a", "alice", "/home"), monday)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Put(box(t, "b", "alice", "/home"), monday); err == nil ||
		!strings.HasPrefix(err.Error(), `cannot record sandbox "b"`) || strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"a alice /home Mon Mon"}, shown(r.List())); diff != "" {
		t.Errorf("a put that failed is there: want (-), got (+):\n%s", diff)
	}
}
