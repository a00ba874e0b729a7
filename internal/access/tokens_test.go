package access

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

const (
	engineToken = "0123456789abcdef0123456789abcdef"
	aliceToken  = "alice-0123456789abcdef0123456789"
)

func writeTokens(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func user(t *testing.T, name string) ids.User {
	t.Helper()
	id, err := ids.ParseUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

const bothTokens = `{"tokens":[{"name":"engine","token":"` + engineToken + `"},{"name":"of-alice","token":"` + aliceToken + `","users":["alice","carol"]}]}`

func TestTokensAreFound(t *testing.T) {
	tokens, err := ReadTokens(writeTokens(t, bothTokens))
	if err != nil {
		t.Fatal(err)
	}
	engine, ok := tokens.Find(engineToken)
	if !ok || engine.Name != "engine" || !engine.Users.All() {
		t.Errorf("%+v, %t", engine, ok)
	}
	alice, ok := tokens.Find(aliceToken)
	if !ok || alice.Name != "of-alice" || alice.Users.All() || !alice.Users.Has(user(t, "carol")) || alice.Users.Has(user(t, "bob")) {
		t.Errorf("%+v, %t", alice, ok)
	}
	for _, wrong := range []string{"", " ", engineToken[:31], engineToken + "0", strings.ToUpper(engineToken)} {
		if who, ok := tokens.Find(wrong); ok || who.Name != "" || who.Users.All() {
			t.Errorf("%q is the token of %+v", wrong, who)
		}
	}
}

func TestTokensCarryTheirQuotas(t *testing.T) {
	tokens, err := ReadTokens(writeTokens(t, `{"tokens":[{"name":"engine","token":"`+engineToken+`","quotas":{"containers":9}},
		{"name":"of-alice","token":"`+aliceToken+`","users":["alice"],"quotas":{"commands":4,"requestsPerSecond":5}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	engine, _ := tokens.Find(engineToken)
	if want := (quota.Token{Name: "engine", Own: quota.Bounds{Containers: 9}}); engine.Token != want {
		t.Errorf("%+v", engine.Token)
	}
	alice, _ := tokens.Find(aliceToken)
	if want := (quota.Token{Name: "of-alice", Some: true, Own: quota.Bounds{Commands: 4, RequestsPerSecond: 5}}); alice.Token != want {
		t.Errorf("%+v", alice.Token)
	}
}

func TestTokensThatTakeOthersPlaces(t *testing.T) {
	read := func(text string) *Tokens {
		tokens, err := ReadTokens(writeTokens(t, text))
		if err != nil {
			t.Fatal(err)
		}
		return tokens
	}
	entry := func(name, token, rest string) string {
		return `{"name":"` + name + `","token":"` + token + `"` + rest + `}`
	}
	for _, tt := range []struct{ name, next, gone, come string }{
		{"the same", bothTokens, "[]", "[]"},
		{"one is gone", `{"tokens":[` + entry("engine", engineToken, "") + `]}`, "[of-alice]", "[]"},
		{"one is exchanged", `{"tokens":[` + entry("engine", strings.Repeat("n", 32), "") + `,` + entry("of-alice", aliceToken, `,"users":["carol","alice"]`) + `]}`, "[engine]", "[engine]"},
		{"one opens more", `{"tokens":[` + entry("engine", engineToken, "") + `,` + entry("of-alice", aliceToken, "") + `]}`, "[of-alice]", "[of-alice]"},
		{"one has another quota", `{"tokens":[` + entry("engine", engineToken, "") + `,` + entry("of-alice", aliceToken, `,"users":["alice","carol"],"quotas":{"commands":4}`) + `]}`, "[of-alice]", "[of-alice]"},
		{"another name", `{"tokens":[` + entry("engine", engineToken, "") + `,` + entry("alice", aliceToken, `,"users":["alice","carol"]`) + `]}`, "[of-alice]", "[alice]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tokens, next := read(bothTokens), read(tt.next)
			gone, come := tokens.Use(next)
			if fmt.Sprint(gone) != tt.gone || fmt.Sprint(come) != tt.come {
				t.Errorf("gone %q, new %q", gone, come)
			}
			for _, token := range []string{engineToken, aliceToken, strings.Repeat("n", 32)} {
				got, found := tokens.Find(token)
				want, known := next.Find(token)
				if found != known || got.Name != want.Name || got.Users.String() != want.Users.String() {
					t.Errorf("%.6s…: %+v, want %+v", token, got, want)
				}
			}
		})
	}
}

// TestHeldEndsWithItsToken: what is held ends with its token or its users, but not with the token's bounds.
func TestHeldEndsWithItsToken(t *testing.T) {
	entry := func(token, rest string) string {
		return `{"tokens":[{"name":"engine","token":"` + engineToken + `"},{"name":"of-alice","token":"` + token + `"` + rest + `}]}`
	}
	for _, tt := range []struct {
		name, next      string
		ends, ownedEnds bool
	}{
		{"the same users, in another order", entry(aliceToken, `,"users":["carol","alice"]`), false, false},
		{"another bound", entry(aliceToken, `,"users":["alice","carol"],"quotas":{"commands":4}`), false, false},
		{"a user is taken away", entry(aliceToken, `,"users":["alice"]`), true, false},
		{"another user", entry(aliceToken, `,"users":["alice","bob"]`), true, false},
		{"everyone", entry(aliceToken, ""), true, false},
		{"another token", entry(strings.Repeat("n", 32), `,"users":["alice","carol"]`), true, true},
		{"no token", `{"tokens":[{"name":"engine","token":"` + engineToken + `"}]}`, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tokens, err := ReadTokens(writeTokens(t, bothTokens))
			if err != nil {
				t.Fatal(err)
			}
			next, err := ReadTokens(writeTokens(t, tt.next))
			if err != nil {
				t.Fatal(err)
			}
			alice, _ := tokens.Find(aliceToken)
			before, release := tokens.Hold(t.Context(), alice)
			defer release()
			owned, releaseOwned := tokens.HoldKey(t.Context(), alice)
			defer releaseOwned()
			tokens.Use(next)
			after, releaseAfter := tokens.Hold(t.Context(), alice) // who was admitted just before
			defer releaseAfter()
			for what, ended := range map[string]bool{"before": before.Err() != nil, "after": after.Err() != nil} {
				if ended != tt.ends {
					t.Errorf("what was held %s has ended: %t", what, ended)
				}
			}
			if ended := owned.Err() != nil; ended != tt.ownedEnds {
				t.Errorf("what is the token's own has ended: %t", ended)
			}
		})
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	entry := func(rest string) string { return `{"tokens":[{"name":"a","token":"` + engineToken + `"` + rest + `}]}` }
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", ``, "the JSON ends too early"},
		{"no JSON", `tokens:`, "line 1, column 2: cannot be read as JSON"},
		{"more after it", entry(``) + `{}`, "there is more after the first value"},
		{"none", `{}`, "the file has none"},
		{"an empty list", `{"tokens":[]}`, "the file has none"},
		{"null", `{"tokens":null}`, "tokens: want a list of objects, got null"},
		{"unknown key", entry(`,"user":["alice"]`), "tokens[0].user: unknown key (did you mean users?)"},
		{"key in another case", entry(`,"Users":["alice"]`), "tokens[0].Users: unknown key"},
		{"key twice", entry(`,"users":["alice"],"users":["bob"]`), "tokens[0].users: is given more than once"},
		{"token of a wrong type", `{"tokens":[{"name":"a","token":7}]}`, "tokens[0].token: want a string, got a number"},
		{"no token", `{"tokens":[{"name":"a"}]}`, `tokens[0] ("a"): the token is empty`},
		{"empty token", `{"tokens":[{"name":"a","token":""}]}`, `tokens[0] ("a"): the token is empty`},
		{"short token", `{"tokens":[{"name":"a","token":"hunter2hunter2"}]}`, `tokens[0] ("a"): the token has 14 characters, fewer than 32`},
		{"long token", `{"tokens":[{"name":"a","token":"` + strings.Repeat("a", 1025) + `"}]}`, "more than 1024"},
		{"token that no header takes", `{"tokens":[{"name":"a","token":"` + engineToken + ` x"}]}`, "no header takes"},
		{"no name", `{"tokens":[{"token":"` + engineToken + `"}]}`, "tokens[0] (\"\"): the name"},
		{"name for the log's sake", `{"tokens":[{"name":"a\nb","token":"` + engineToken + `"}]}`, `tokens[0] ("a\nb"): the name`},
		{"name twice", `{"tokens":[{"name":"a","token":"` + engineToken + `"},{"name":"a","token":"` + aliceToken + `"}]}`, `tokens[1] ("a"): the name is given more than once`},
		{"token twice", `{"tokens":[{"name":"a","token":"` + engineToken + `"},{"name":"b","token":"` + engineToken + `"}]}`, `tokens[1] ("b"): the token is that of "a"`},
		{"unknown key in quotas", entry(`,"quotas":{"container":4}`), `tokens[0] ("a"): quotas.container: unknown key`},
		{"quota of nothing", entry(`,"quotas":{"containers":0}`), "quotas.containers: 0 is less than 1"},
		{"quota below nothing", entry(`,"quotas":{"requestsPerSecond":-1}`), "quotas.requestsPerSecond: -1 is less than 1"},
		{"quota of a wrong type", entry(`,"quotas":{"containers":"4"}`), "tokens[0].quotas.containers: want a whole number, got a string"},
		{"users that are none", entry(`,"users":[]`), `users is empty, which is nobody`},
		{"users that are null", entry(`,"users":null`), `tokens[0].users: want a list of strings, got null`},
		{"users of a wrong type", entry(`,"users":"alice"`), "tokens[0].users: want a list of strings, got a string"},
		{"a user that cannot be", entry(`,"users":["bob","Alice"]`), `users[1]: userId "Alice" has upper-case letters`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ReadTokens(writeTokens(t, tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %s", err, tt.want)
			}
			for _, secret := range []string{engineToken, aliceToken, "hunter2"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("a token is told: %v", err)
				}
			}
		})
	}
}

func TestFilesThatHoldNoTokens(t *testing.T) {
	path := writeTokens(t, bothTokens)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTokens(path); err != nil {
		t.Errorf("the owner's alone: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, t.TempDir(), filepath.Join(t.TempDir(), "nothing")} {
		if _, err := ReadTokens(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that was cut at any byte admits nobody, and its error contains no token.
func TestTokensFileThatWasCut(t *testing.T) {
	path := writeTokens(t, bothTokens)
	for length := len(bothTokens) - 1; length >= 0; length-- {
		if err := os.Truncate(path, int64(length)); err != nil {
			t.Fatal(err)
		}
		_, err := ReadTokens(path)
		if err == nil || strings.Contains(err.Error(), engineToken[:8]) || strings.Contains(err.Error(), aliceToken[:8]) {
			t.Errorf("cut to %d bytes: %v", length, err)
		}
	}
}

// A user may have the name by which all users are told.
func TestAUserNamedEveryone(t *testing.T) {
	all, one := Caller{Name: "a", Users: ids.Everyone()}, Caller{Name: "a", Users: ids.OnlyUsers(user(t, "everyone"))}
	if all.is(one) || all.Users.String() != one.Users.String() {
		t.Error("a token for one user is taken for one for all")
	}
}
