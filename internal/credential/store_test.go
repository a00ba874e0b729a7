package credential

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/vault"
)

const secret = "hunter2-hunter2"

// disk is where a store is, and what it has logged.
type disk struct {
	t   *testing.T
	dir string
	log bytes.Buffer
}

func newDisk(t *testing.T) *disk { return &disk{t: t, dir: filepath.Join(t.TempDir(), "credentials")} }

func (d *disk) key() string             { return filepath.Join(filepath.Dir(d.dir), "key") }
func (d *disk) file(name string) string { return filepath.Join(d.dir, name+".json") }

func (d *disk) open() *Store {
	d.t.Helper()
	s, err := Open(d.dir, vault.New(d.key()), zerolog.New(&d.log))
	if err != nil {
		d.t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, c Credential, value string) Credential {
	t.Helper()
	stored, _, err := s.Put(c, value)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// has fails the test unless a credential has a value.
func has(t *testing.T, s *Store, name, want string) {
	t.Helper()
	if got, err := valueOf(s, name); err != nil || got != want {
		t.Errorf("the value of %s is %q, %v, want %q", name, got, err, want)
	}
}

// valueOf returns the value of the credential of a name.
func valueOf(s *Store, name string) (string, error) {
	c, err := s.Get(name)
	if err != nil {
		return "", err
	}
	return s.Value(c)
}

func TestCredentialsAreKept(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	given := Credential{
		Name: "github", Hosts: []string{"uploads.github.com", "API.GitHub.com", "api.github.com."},
		Place:   Place{Header: "authorization", Template: "Bearer {secret}"},
		Methods: []string{"POST", "GET"}, Paths: []string{"/repos/y", "/repos/x"}, Users: []string{"bob", "alice"},
		Env: "GITHUB_TOKEN", Placeholder: "mine",
	}
	stored, made, err := s.Put(given, secret)
	if err != nil || !made {
		t.Fatalf("%v, %v", made, err)
	}
	want := Credential{
		Name: "github", Hosts: []string{"api.github.com", "uploads.github.com"}, Place: bearer,
		Methods: []string{"GET", "POST"}, Paths: []string{"/repos/x", "/repos/y"}, Users: []string{"alice", "bob"},
		Env: "GITHUB_TOKEN", Placeholder: stored.Placeholder, CreatedAt: stored.CreatedAt, UpdatedAt: stored.CreatedAt,
	}
	if !cmp.Equal(stored, want) || !placeholderPattern.MatchString(stored.Placeholder) || stored.CreatedAt.IsZero() {
		t.Errorf("%s", cmp.Diff(want, stored))
	}
	if given.Hosts[0] != "uploads.github.com" || given.Users[0] != "bob" {
		t.Errorf("the caller's lists were changed: %v", given)
	}
	other := put(t, s, Credential{Name: "a", Hosts: []string{"*.example.com"}, Place: Place{Query: "key"}}, "k")
	if other.Placeholder == stored.Placeholder {
		t.Error("two credentials have one placeholder")
	}
	for _, s := range []*Store{s, d.open()} {
		if got, err := s.Get("github"); err != nil || !cmp.Equal(got, stored) {
			t.Errorf("%v, %s", err, cmp.Diff(stored, got))
		}
		if got := s.List(); !cmp.Equal(got, []Credential{other, stored}) {
			t.Errorf("%s", cmp.Diff([]Credential{other, stored}, got))
		}
		has(t, s, "github", secret)
		has(t, s, "a", "k")
	}
	if d.log.Len() > 0 {
		t.Errorf("it logged %s", &d.log)
	}
}

func TestACredentialThatIsNotThere(t *testing.T) {
	s := newDisk(t).open()
	_, get := s.Get("none")
	_, value := valueOf(s, "none")
	for _, err := range []error{get, value, s.Remove("none"), s.Remove("../key")} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
	}
	if list := s.List(); list == nil || len(list) > 0 {
		t.Errorf("%v", list)
	}
}

func TestWhatIsInvalidIsNotKept(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	invalid := valid()
	invalid.Hosts = []string{"*"}
	for _, test := range []struct {
		c           Credential
		value, says string
	}{
		{invalid, secret, "is everyone"}, {valid(), secret + "\n", "a line break"}, {valid(), "", "value is missing"},
	} {
		if _, made, err := s.Put(test.c, test.value); !errdefs.IsInvalidArgument(err) || made || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v, %v, want %s", made, err, test.says)
		}
	}
	if left, _ := os.ReadDir(d.dir); len(left) > 0 || len(s.List()) > 0 {
		t.Errorf("kept: %v, %v", left, s.List())
	}
}

func TestAValueIsReplaced(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	first := put(t, s, valid(), secret)
	changed := valid()
	changed.Env = "TOKEN"
	second, made, err := s.Put(changed, "another")
	if err != nil || made || second.Placeholder != first.Placeholder || !second.CreatedAt.Equal(first.CreatedAt) ||
		second.UpdatedAt.Before(first.UpdatedAt) || second.Env != "TOKEN" {
		t.Errorf("%v, %v: %+v after %+v", made, err, second, first)
	}
	has(t, s, "github", "another")
	has(t, d.open(), "github", "another")
}

// A value that is not given again stays, but is sent to nobody else and nowhere else: who could have
// that would read it.
func TestAValueStaysWhereItIs(t *testing.T) {
	from := valid()
	from.Hosts, from.Methods = []string{"api.github.com", "*.example.com"}, []string{"GET"}
	for name, test := range map[string]struct {
		change func(*Credential)
		keeps  bool
	}{
		"nothing":           {func(*Credential) {}, true},
		"requests and env":  {func(c *Credential) { c.Methods, c.Paths, c.Env = nil, []string{"/a"}, "A" }, true},
		"users":             {func(c *Credential) { c.Users = []string{"alice"} }, true},
		"fewer hosts":       {func(c *Credential) { c.Hosts = []string{"api.github.com"} }, true},
		"a host of theirs":  {func(c *Credential) { c.Hosts = []string{"api.github.com", "a.example.com", "*.b.example.com"} }, true},
		"another form":      {func(c *Credential) { c.Hosts, c.Place.Header = []string{"API.github.com"}, "AUTHORIZATION" }, true},
		"another host":      {func(c *Credential) { c.Hosts = append(c.Hosts, "evil.test") }, false},
		"a host above":      {func(c *Credential) { c.Hosts = []string{"example.com"} }, false},
		"a wider wildcard":  {func(c *Credential) { c.Hosts = []string{"*.github.com"} }, false},
		"another header":    {func(c *Credential) { c.Place.Header = "X-Key" }, false},
		"another template":  {func(c *Credential) { c.Place.Template = "token {secret}" }, false},
		"another user name": {func(c *Credential) { c.Place = Place{Basic: "x"} }, false},
		"a query":           {func(c *Credential) { c.Place = Place{Query: "key"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			s := d.open()
			put(t, s, from, secret)
			to := from
			to.Hosts = slices.Clone(from.Hosts)
			test.change(&to)
			stored, made, err := s.Put(to, "")
			if test.keeps != (err == nil) || made || !test.keeps && !errdefs.IsInvalidArgument(err) {
				t.Fatalf("%v, %v", made, err)
			}
			if got, _ := s.Get(from.Name); test.keeps && !cmp.Equal(got, stored) || !test.keeps && !cmp.Equal(got.Hosts, from.canonical().Hosts) {
				t.Errorf("it is %+v", got)
			}
			has(t, s, from.Name, secret)
			has(t, d.open(), from.Name, secret)
			if _, _, err := s.Put(to, "another"); err != nil {
				t.Error(err)
			}
			has(t, d.open(), from.Name, "another")
		})
	}
}

func TestARemovedCredentialIsGone(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	first := put(t, s, valid(), secret)
	if err := s.Remove("github"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, d.open()} {
		if _, err := valueOf(s, "github"); !errdefs.IsNotFound(err) || len(s.List()) > 0 || len(s.For([]string{"github"}, "alice", "api.github.com")) > 0 {
			t.Errorf("%v, %v", err, s.List())
		}
	}
	if again := put(t, s, valid(), secret); again.Placeholder == first.Placeholder {
		t.Error("a new credential has the placeholder of the one that was removed")
	}
}

func TestFor(t *testing.T) {
	s := newDisk(t).open()
	for name, c := range map[string]Credential{
		"b": {Hosts: []string{"api.github.com"}}, "a": {Hosts: []string{"*.github.com"}},
		"c": {Hosts: []string{"api.github.com"}, Users: []string{"bob"}}, "d": {Hosts: []string{"example.com"}},
		"e": {Hosts: []string{"api.github.com"}},
	} {
		c.Name, c.Place = name, bearer
		put(t, s, c, secret)
	}
	held := []string{"d", "c", "b", "a", "b", "none"}
	for _, test := range []struct {
		names      []string
		user, host string
		want       []string
	}{
		{held, "alice", "api.github.com", []string{"a", "b"}},
		{held, "bob", "api.github.com", []string{"a", "b", "c"}},
		{held, "alice", "uploads.github.com", []string{"a"}},
		{held, "alice", "example.com", []string{"d"}},
		{held, "alice", "evil.test", nil},
		{nil, "alice", "api.github.com", nil},
	} {
		var got []string
		for _, c := range s.For(test.names, test.user, test.host) {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s of %q has %q, want %q", test.host, test.names, got, test.want)
		}
	}
}

func TestEveryChangeIsTold(t *testing.T) {
	s := newDisk(t).open()
	isTold := func(changed <-chan struct{}) bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	for name, change := range map[string]func() error{
		"made":     func() error { _, _, err := s.Put(valid(), secret); return err },
		"replaced": func() error { _, _, err := s.Put(valid(), ""); return err },
		"removed":  func() error { return s.Remove("github") },
	} {
		if name != "made" {
			put(t, s, valid(), secret)
		}
		changed := s.Changed()
		if isTold(changed) {
			t.Errorf("%s: told before", name)
		}
		if err := change(); err != nil || !isTold(changed) || isTold(s.Changed()) {
			t.Errorf("%s: %v, or nobody is told", name, err)
		}
	}
	changed := s.Changed()
	if _, _, err := s.Put(Credential{}, secret); err == nil || isTold(changed) {
		t.Errorf("%v, or what did not change is told", err)
	}
}

func TestTheNumberIsBounded(t *testing.T) {
	s := newDisk(t).open()
	for i := range maxCredentials { // without the disk
		s.all[fmt.Sprint("c", i)] = kept{}
	}
	if _, _, err := s.Put(valid(), secret); !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v", err)
	}
	delete(s.all, "c0")
	put(t, s, valid(), secret)
	put(t, s, valid(), "another") // one that is there has its place
}

func TestNoValueIsOnTheDiskOrInTheLog(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	stored := put(t, s, valid(), secret)
	if text := fmt.Sprintf("%+v %#v %+v", stored, stored, s); strings.Contains(text, secret) {
		t.Errorf("it is printed: %s", text)
	}
	err := filepath.WalkDir(filepath.Dir(d.dir), func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s has it", name)
		}
		if info, _ := entry.Info(); info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// Whoever can write the records cannot have a value sent elsewhere: it opens for nobody until it is
// set again.
func TestAChangedRecordDoesNotOpen(t *testing.T) {
	for name, change := range map[string][2]string{
		"host":        {`"api.github.com"`, `"evil.test"`},
		"more hosts":  {`"api.github.com"`, `"api.github.com","evil.test"`},
		"wildcard":    {`"api.github.com"`, `"*.github.com"`},
		"header":      {`"Authorization"`, `"X-Key"`},
		"template":    {`"Bearer {secret}"`, `"{secret}"`},
		"place":       {`"header":"Authorization","template":"Bearer {secret}"`, `"query":"key"`},
		"methods":     {`"methods":["GET"],`, ``},
		"paths":       {`"/repos"`, `"/"`},
		"users":       {`"users":["alice"],`, ``},
		"placeholder": {`daycare-secret-`, `daycare-secret-00000000000000000000000000000000","x":"`},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			c := valid()
			c.Methods, c.Paths, c.Users = []string{"GET"}, []string{"/repos"}, []string{"alice"}
			stored := put(t, d.open(), c, secret)
			text, err := os.ReadFile(d.file("github"))
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), change[0], change[1], 1)
			if changed == string(text) {
				t.Fatalf("%s has no %s", text, change[0])
			}
			if err := os.WriteFile(d.file("github"), []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			s := d.open()
			got, err := s.Get("github")
			if err != nil || cmp.Equal(got, stored) {
				t.Fatalf("%+v, %v", got, err)
			}
			if value, err := valueOf(s, "github"); !errdefs.IsConflict(err) || value != "" || !strings.Contains(err.Error(), "its record was changed") {
				t.Errorf("%q, %v", value, err)
			}
			if _, _, err := s.Put(got, ""); !errdefs.IsConflict(err) {
				t.Errorf("it was sealed again: %v", err)
			}
			put(t, s, c, "another")
			has(t, d.open(), "github", "another")
		})
	}
}

func TestAValueIsOfOneCredential(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	put(t, s, valid(), secret)
	other := valid()
	other.Name = "other"
	put(t, s, other, "another")
	text, err := os.ReadFile(d.file("github"))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"name":"github"`), []byte(`"name":"other"`), 1)
	if err := os.WriteFile(d.file("other"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if value, err := valueOf(d.open(), "other"); !errdefs.IsConflict(err) {
		t.Errorf("%q, %v", value, err)
	}
}

// A record that is cut at any byte is set aside, and the others are there.
func TestARecordThatWasCut(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	put(t, s, valid(), secret)
	other := valid()
	other.Name = "other"
	put(t, s, other, "another")
	text, err := os.ReadFile(d.file("github"))
	if err != nil {
		t.Fatal(err)
	}
	for length := range text {
		d.log.Reset()
		if err := os.WriteFile(d.file("github"), text[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		s := d.open()
		if _, err := valueOf(s, "github"); !errdefs.IsNotFound(err) {
			t.Errorf("cut to %d bytes: %v", length, err)
		}
		has(t, s, "other", "another")
		if !strings.Contains(d.log.String(), "damaged record of a credential") {
			t.Errorf("cut to %d bytes: it logged %q", length, &d.log)
		}
		aside, err := os.ReadFile(d.file("github") + ".damaged")
		if err != nil || !bytes.Equal(aside, text[:length]) {
			t.Errorf("cut to %d bytes: set aside %q, %v", length, aside, err)
		}
	}
}

func TestARecordThatIsNone(t *testing.T) {
	d := newDisk(t)
	put(t, d.open(), valid(), secret)
	text, err := os.ReadFile(d.file("github"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ file, old, new, says string }{
		{"github", `"version":1`, `"version":2`, "version 2 is not known"},
		{"copy", ``, ``, `it is about \"github\"`},
		{"github", `["api.github.com"]`, `["*"]`, "is everyone"},
		{"github", `["api.github.com"]`, `[]`, "hosts is missing"},
		{"github", `"Authorization"`, `"Host"`, "is about the connection"},
		{"github", `"placeholder":"daycare-secret-`, `"placeholder":"`, "is no placeholder"},
		{"github", `"sealed":"`, `"sealed":"","x":"`, "it has no value"},
	} {
		d.log.Reset()
		changed := strings.Replace(string(text), test.old, test.new, 1)
		if err := os.WriteFile(d.file(test.file), []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.open().Get(test.file); !errdefs.IsNotFound(err) || !strings.Contains(d.log.String(), test.says) {
			t.Errorf("%q: %v, %s", test.new, err, &d.log)
		}
	}
}

// Without the key nobody has the value; a key that is put back is used, and what is set anew in the
// meantime is there.
func TestAKeyThatIsGone(t *testing.T) {
	d := newDisk(t)
	put(t, d.open(), valid(), secret)
	if err := os.Rename(d.key(), d.key()+".aside"); err != nil {
		t.Fatal(err)
	}
	s := d.open()
	if value, err := valueOf(s, "github"); !errdefs.IsConflict(err) || !strings.Contains(err.Error(), "its key is gone") {
		t.Errorf("%q, %v", value, err)
	}
	if err := os.Rename(d.key()+".aside", d.key()); err != nil {
		t.Fatal(err)
	}
	has(t, s, "github", secret)
	if err := os.Truncate(d.key(), 31); err != nil {
		t.Fatal(err)
	}
	if value, err := valueOf(s, "github"); err == nil || !strings.Contains(err.Error(), "has 31 bytes") {
		t.Errorf("%q, %v", value, err)
	}
	if err := os.Remove(d.key()); err != nil {
		t.Fatal(err)
	}
	put(t, s, valid(), "another")
	has(t, d.open(), "github", "another")
}

// A disk that takes nothing leaves all as it was.
func TestADiskThatIsGone(t *testing.T) {
	d := newDisk(t)
	s := d.open()
	stored := put(t, s, valid(), secret)
	if err := os.Rename(d.dir, d.dir+".aside"); err != nil {
		t.Fatal(err)
	}
	changed := s.Changed()
	removing := s.Remove("github")
	_, _, err := s.Put(valid(), "another")
	for _, err := range []error{err, removing} {
		if err == nil || strings.Contains(err.Error(), d.dir) {
			t.Errorf("%v", err)
		}
	}
	select {
	case <-changed:
		t.Error("a change is told")
	default:
	}
	if got, err := s.Get("github"); err != nil || !cmp.Equal(got, stored) {
		t.Errorf("%+v, %v", got, err)
	}
	has(t, s, "github", secret)
}

// Readers see a credential as it was or as it is, with the value that belongs to it.
func TestChangesWhileOthersRead(t *testing.T) {
	s := newDisk(t).open()
	put(t, s, valid(), "0")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				if value, err := valueOf(s, "github"); err != nil || len(value) != 1 {
					t.Errorf("%q, %v", value, err)
				}
				if got := s.For([]string{"github"}, "alice", "api.github.com"); len(got) != 1 {
					t.Errorf("%v", got)
				}
				s.Changed()
				s.List()
			}
		})
	}
	for i := range 5 {
		all.Go(func() {
			for range 5 {
				if _, _, err := s.Put(valid(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// Who looked a credential up before its hosts changed does not get the new value.
func TestAValueGoesWhereItIsFor(t *testing.T) {
	s := newDisk(t).open()
	before := put(t, s, valid(), secret)
	moved := valid()
	moved.Hosts = []string{"elsewhere.example"}
	put(t, s, moved, "new")
	if value, err := s.Value(before); !errdefs.IsConflict(err) || value != "" {
		t.Errorf("%q, %v", value, err)
	}
}
