package ids

import (
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
)

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name, message string // empty when the name is fine
	}{
		{"alice", ""},
		{"7", ""},
		{"a.b_c-d", ""},
		{"a-", ""},
		{"a.", ""},
		{strings.Repeat("a", 63), ""},
		{"", "is empty"},
		{strings.Repeat("a", 200), "more than"},
		{"Alice", `did you mean "alice"?`},
		{"ALICE", `did you mean "alice"?`},
		{".", `"."`},
		{"..", `".."`},
		{"a..b", `"a..b"`},
		{".hidden", `".hidden"`},
		{"-rf", `"-rf"`},
		{"_x", `"_x"`},
		{"a/b", `"a/b"`},
		{"../a", `"../a"`},
		{"a b", `"a b"`},
		{"a\n", `"a\n"`},
		{"a\x00", `"a\x00"`},
		{"alicé", `"alicé"`},
		{"K", `"K"`}, // the Kelvin sign, which is k in lower case
	} {
		_, userErr := ParseUser(tt.name)
		_, idErr := ParseSandbox(tt.name)
		for _, err := range []error{userErr, idErr} {
			switch {
			case tt.message == "" && err != nil:
				t.Errorf("%q: %v", tt.name, err)
			case tt.message != "" && (!cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.message)):
				t.Errorf("%q: %v, want %s", tt.name, err, tt.message)
			}
		}
	}
}

func TestLongestNames(t *testing.T) {
	if _, err := ParseUser(strings.Repeat("a", 64)); err == nil {
		t.Error("a user id of 64 characters")
	}
	if _, err := ParseSandbox(strings.Repeat("a", 128)); err != nil {
		t.Errorf("a sandbox id of 128 characters: %v", err)
	}
	if _, err := ParseSandbox(strings.Repeat("a", 129)); err == nil {
		t.Error("a sandbox id of 129 characters")
	}
}

// FuzzNames holds that what is accepted names one thing in one directory, on any file system.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"alice", "a.b", "..", "A", "a/b", "a\x00", "K", strings.Repeat("a", 64)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		user, err := ParseUser(name)
		if err != nil {
			if !cerrdefs.IsInvalidArgument(err) {
				t.Fatalf("class of %v", err)
			}
			return
		}
		switch {
		case user.String() != name:
			t.Fatalf("%q became %q", name, user)
		case filepath.Base(name) != name || !filepath.IsLocal(name) || strings.Contains(name, ".."):
			t.Fatalf("%q is not a name in a directory", name)
		case strings.ToLower(name) != name || len(name) > 63:
			t.Fatalf("%q", name)
		}
		if _, err := ParseSandbox(name); err != nil {
			t.Fatalf("a user id that is no sandbox id: %v", err)
		}
	})
}

func TestUsers(t *testing.T) {
	alice, bob := User{"alice"}, User{"bob"}
	for _, tt := range []struct {
		users           Users
		all, alice, bob bool
		text            string
	}{
		{Users{}, false, false, false, "nobody"},
		{OnlyUsers(), false, false, false, "nobody"},
		{OnlyUsers(bob, alice), false, true, true, "alice, bob"},
		{OnlyUsers(alice), false, true, false, "alice"},
		{Everyone(), true, true, true, "everyone"},
	} {
		if u := tt.users; u.All() != tt.all || u.Has(alice) != tt.alice || u.Has(bob) != tt.bob || u.String() != tt.text {
			t.Errorf("%s: %t %t %t", u, u.All(), u.Has(alice), u.Has(bob))
		}
	}
}
