package credential

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestCovers(t *testing.T) {
	c := Credential{Hosts: []string{"api.github.com", "*.example.com", "*.b.test"}}
	for host, want := range map[string]bool{
		"api.github.com": true, "github.com": false, "x.api.github.com": false, "api.github.com.": false,
		"a.example.com": true, "a.b.example.com": true, "example.com": false, ".example.com": false,
		"aexample.com": false, "a.example.com.evil.test": false, "a.b.test": true, "b.test": false,
		"*.example.com": true, "": false,
	} {
		if got := c.Covers(host); got != want {
			t.Errorf("Covers(%q) = %v", host, got)
		}
	}
	if (Credential{}).Covers("") || (Credential{}).Covers("api.github.com") {
		t.Error("a credential without hosts is for one")
	}
}

func TestMayHave(t *testing.T) {
	for _, test := range []struct {
		users []string
		user  string
		want  bool
	}{
		{nil, "alice", true}, {[]string{"alice", "bob"}, "bob", true}, {[]string{"alice"}, "bob", false},
		{[]string{}, "alice", false}, {[]string{"alice"}, "", false},
	} {
		if got := (Credential{Users: test.users}).MayHave(test.user); got != test.want {
			t.Errorf("%q of %q: %v", test.user, test.users, got)
		}
	}
}

func TestMatchesMethods(t *testing.T) {
	all, read, write := Credential{}, Credential{Methods: []string{"GET"}}, Credential{Methods: []string{"POST", "PUT"}}
	head := Credential{Methods: []string{"HEAD"}}
	for _, test := range []struct {
		c      Credential
		method string
		want   bool
	}{
		{all, "GET", true}, {all, "PROPFIND", true}, {all, "CONNECT", false}, {all, "TRACE", false},
		{read, "GET", true}, {read, "HEAD", true}, {read, "POST", false}, {read, "get", false}, {read, "", false},
		{write, "PUT", true}, {write, "HEAD", false}, {write, "GET", false},
		{head, "HEAD", true}, {head, "GET", false},
	} {
		if got := test.c.Matches(test.method, "/"); got != test.want {
			t.Errorf("%q of %q: %v", test.method, test.c.Methods, got)
		}
	}
}

func TestMatchesPaths(t *testing.T) {
	for _, test := range []struct {
		prefix, path string
		want         bool
	}{
		{"/repos/x", "/repos/x", true},
		{"/repos/x", "/repos/x/", true},
		{"/repos/x", "/repos/x/y/z", true},
		{"/repos/x", "/repos/xy", false},
		{"/repos/x", "/repos", false},
		{"/repos/x", "/repos/X", false},
		{"/repos/x", "/a/repos/x", false},
		{"/repos/", "/repos/", true},
		{"/repos/", "/repos/x", true},
		{"/repos/", "/repos", false},
		{"/", "/", true},
		{"/", "/anything", true},
		{"/", "", false},
		{"/", "*", false},
		{"/", "repos", false},

		// One decoding, of both.
		{"/a b", "/a%20b/c", true},
		{"/a%20b", "/a%20b", true},
		{"/a%20b", "/%61%20b", true},
		{"/bücher", "/b%C3%BCcher", true},
		{"/repos/x", "/repos/x%3Fy", false},
		{"/repos/x", "/repos/x;y", false},
		{"/repos/x", "/repos/x/;y", true},
		{"/repos/x", "/repos/x/...", true},
		{"/repos/x", "/repos/x/..y", true},

		// What others may read as another path.
		{"/repos/x", "/repos/x/../y", false},
		{"/repos/x", "/repos/x/..", false},
		{"/repos/x", "/repos/x/.", false},
		{"/repos/x", "/repos/./x", false},
		{"/repos/x", "/repos/x/%2e%2E/y", false},
		{"/repos/x", "/repos/x/.%2e/y", false},
		{"/repos/x", "/repos/x/..;/y", false},
		{"/repos/x", "/repos/x/..%3b/y", false},
		{"/repos/x", "/repos/x%2fy", false},
		{"/repos/x", "/repos%2Fx", false},
		{"/repos/x", "/repos/x/a%5Cb", false},
		{"/repos/x", `/repos/x/a\b`, false},
		{"/repos/x", `/repos/x/..\..\y`, false},
		{"/repos/x", "/repos/x/%252e%252e/y", false},
		{"/repos/x", "/repos/x/%252fy", false},
		{"/repos/x", "/repos/x/%25252fy", false},
		{"/repos/x", "/repos/x/%25u002e", false},
		{"/repos/x", "/repos/x/%c0%ae%c0%ae/y", false},
		{"/repos/x", "/repos/x/%00", false},
		{"/repos/x", "/repos/x/a%0d%0ab", false},
		{"/repos/x", "/repos/x/%zz", false},
		{"/repos/x", "/repos/x/%2", false},
		{"/repos/x", "//repos/x", false},
	} {
		c := Credential{Paths: []string{"/never", test.prefix}}
		if got := c.Matches("GET", test.path); got != test.want {
			t.Errorf("%q below %q: %v", test.path, test.prefix, got)
		}
	}
	if !(Credential{}).Matches("GET", "/a/%2e%2e/%2f") {
		t.Error("a path matters that no prefix asks for")
	}
	if (Credential{Paths: []string{"/%zz", "x", ""}}).Matches("GET", "/x") {
		t.Error("a prefix that is none matches")
	}
}

// FuzzMatches: whatever matches stays below the prefix, for servers that decode twice, take a
// backslash for a slash and resolve the result, too.
func FuzzMatches(f *testing.F) {
	for _, asked := range []string{"/a", "/a/b", "/a/../b", "/a/%2e%2e/b", "/a/%252e./b", `/a/..\b`, "/a/..;x/b", "//a", "/a%2fb"} {
		f.Add(asked)
	}
	c := Credential{Paths: []string{"/a"}}
	f.Fuzz(func(t *testing.T, asked string) {
		if !c.Matches("GET", asked) {
			return
		}
		for read := asked; ; {
			again, err := url.PathUnescape(read)
			if err != nil {
				t.Fatalf("%q is decoded to %q: %v", asked, read, err)
			}
			resolved := path.Clean(strings.ReplaceAll(again, `\`, "/"))
			if resolved != "/a" && !strings.HasPrefix(resolved, "/a/") {
				t.Fatalf("%q is %q", asked, resolved)
			}
			if again == read {
				return
			}
			read = again
		}
	})
}

// valid returns a credential without a fault.
func valid() Credential {
	return Credential{Name: "github", Hosts: []string{"api.github.com"}, Place: bearer}
}

var bearer = Place{Header: "Authorization", Template: "Bearer {secret}"}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*Credential){
		"as it is":          func(*Credential) {},
		"a letter":          func(c *Credential) { c.Name = "a" },
		"a long name":       func(c *Credential) { c.Name = strings.Repeat("a", 64) },
		"all of it":         func(c *Credential) { c.Methods, c.Paths, c.Users = []string{"GET"}, []string{"/a"}, []string{"alice"} },
		"another form":      func(c *Credential) { c.Hosts = []string{"API.GitHub.com.", "*.BÜCHER.example"} },
		"most hosts":        func(c *Credential) { c.Hosts = strings.Fields(strings.Repeat("a.test ", 32)) },
		"basic":             func(c *Credential) { c.Place = Place{Basic: "x-access-token"} },
		"query":             func(c *Credential) { c.Place = Place{Query: "api_key"} },
		"cookie":            func(c *Credential) { c.Place = Place{Header: "cookie", Template: "session={secret}; a=b"} },
		"own method":        func(c *Credential) { c.Methods = []string{"M-SEARCH", "GET"} },
		"variable":          func(c *Credential) { c.Env = "GITHUB_TOKEN" },
		"private variable":  func(c *Credential) { c.Env = "_x1" },
		"an escaped path":   func(c *Credential) { c.Paths = []string{"/a%20b/"} },
		"placeholder later": func(c *Credential) { c.Placeholder = "" },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	place := func(p Place) func(*Credential) { return func(c *Credential) { c.Place = p } }
	header := func(name string) func(*Credential) { return place(Place{Header: name, Template: "{secret}"}) }
	template := func(text string) func(*Credential) { return place(Place{Header: "X-Key", Template: text}) }
	host := func(s string) func(*Credential) { return func(c *Credential) { c.Hosts = []string{"a.test", s} } }
	method := func(s string) func(*Credential) { return func(c *Credential) { c.Methods = []string{s} } }
	path := func(s string) func(*Credential) { return func(c *Credential) { c.Paths = []string{s} } }
	env := func(s string) func(*Credential) { return func(c *Credential) { c.Env = s } }
	name := func(s string) func(*Credential) { return func(c *Credential) { c.Name = s } }
	for _, test := range []struct {
		change func(*Credential)
		says   string
	}{
		{name(""), "name of a credential is missing"},
		{name("A"), `"A" is no name`},
		{name("-a"), `"-a" is no name`},
		{name("a-"), `"a-" is no name`},
		{name("a_b"), `"a_b" is no name`},
		{name("a/b"), `"a/b" is no name`},
		{name("../a"), `"../a" is no name`},
		{name("a.json"), `"a.json" is no name`},
		{name("a\n"), `"a\n" is no name`},
		{name(strings.Repeat("a", 65)), "1 to 64"},

		{func(c *Credential) { c.Hosts = nil }, "hosts is missing"},
		{func(c *Credential) { c.Hosts = []string{} }, "hosts is missing"},
		{func(c *Credential) { c.Hosts = strings.Fields(strings.Repeat("a.test ", 33)) }, "hosts has 33"},
		{host("*"), `hosts[1]: "*" is everyone`},
		{host("*.com"), `hosts[1]: "*.com" would allow everyone`},
		{host("*.co.uk"), `hosts[1]: "*.co.uk" would allow everyone`},
		{host("localhost"), `hosts[1]: "localhost" has no dot`},
		{host("127.0.0.1"), `hosts[1]: "127.0.0.1" is an IP address`},
		{host("a.test:443"), `hosts[1]: "a.test:443" has a port`},
		{host("https://a.test"), `hosts[1]: "https://a.test" is a URL`},
		{host("a.*.test"), "hosts[1]"},
		{host(""), "hosts[1]"},

		{place(Place{}), "exactly one"},
		{place(Place{Basic: "x", Query: "y"}), "exactly one"},
		{place(Place{Header: "X-Key", Template: "{secret}", Query: "y"}), "exactly one"},
		{place(Place{Template: "Bearer {secret}", Basic: "x"}), "there is none"},
		{place(Place{Basic: "a:b"}), `basic "a:b"`},
		{place(Place{Basic: "a\n"}), `basic "a\n"`},
		{place(Place{Basic: "\xff"}), `basic "\xff"`},
		{place(Place{Query: "a&b"}), `query "a&b"`},
		{place(Place{Query: "a=b"}), `query "a=b"`},
		{place(Place{Query: "a%62"}), `query "a%62"`},
		{header("Host"), `header "Host" is about`},
		{header("host"), `header "host" is about`},
		{header("content-length"), "is about"},
		{header("Transfer-Encoding"), "is about"},
		{header("Connection"), "is about"},
		{header("Keep-Alive"), "is about"},
		{header("TE"), "is about"},
		{header("Trailer"), "is about"},
		{header("upgrade"), "is about"},
		{header("HTTP2-Settings"), "is about"},
		{header("Proxy-Authorization"), "is about"},
		{header("proxy-connection"), "is about"},
		{header("X Key"), `"X Key" is no name`},
		{header("X-Key:"), "is no name"},
		{header(":authority"), "is no name"},
		{header("X-Key\r\nA"), "is no name"},
		{template(""), `template "" must have`},
		{template("Bearer"), `template "Bearer" must have`},
		{template("{secret}{secret}"), "exactly once"},
		{template("Bearer {secret}\r\nX: y"), "is no text"},
		{template("{secret}\x00"), "is no text"},
		{template(" {secret}"), "is no text"},
		{template("{secret}\xff"), "is no text"},

		{func(c *Credential) { c.Methods = []string{} }, "methods is empty"},
		{func(c *Credential) { c.Paths = []string{} }, "paths is empty"},
		{func(c *Credential) { c.Users = []string{} }, "users is empty"},
		{method("get"), `did you mean "GET"?`},
		{method(""), `methods[0]: "" is no method`},
		{method("GET "), `methods[0]: "GET " is no method`},
		{method("CONNECT"), `"CONNECT" has no credentials`},
		{method("TRACE"), `"TRACE" has no credentials`},
		{path(""), `paths[0]: "" does not begin with /`},
		{path("a"), `paths[0]: "a" does not begin with /`},
		{path("/a?b"), `paths[0]: "/a?b" has a query`},
		{path("/a#b"), `paths[0]: "/a#b" has a query or a fragment`},
		{path("/a/../b"), `paths[0]: "/a/../b" matches no request`},
		{path("/a%2fb"), `paths[0]: "/a%2fb" matches no request`},
		{path("/a%252fb"), "matches no request"},
		{path("/%zz"), "matches no request"},
		{path("/" + strings.Repeat("a", 1<<10)), "has 1025 bytes"},
		{func(c *Credential) { c.Users = []string{"alice", "Bob"} }, `users[1]: userId "Bob"`},
		{env("1A"), `env "1A" is no variable`},
		{env("A-B"), `env "A-B" is no variable`},
		{env("A=B"), `env "A=B" is no variable`},
		{env("PATH"), `env "PATH" changes`},
		{env("HOME"), "changes"},
		{env("SHELL"), "changes"},
		{env("BASH_ENV"), "changes"},
		{env("ENV"), "changes"},
		{env("IFS"), "changes"},
		{env("LD_PRELOAD"), "changes"},
	} {
		c := valid()
		test.change(&c)
		if err := c.Validate(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %s", c, err, test.says)
		}
	}
}

func TestValidateTellsAllFaults(t *testing.T) {
	err := Credential{Name: "A", Hosts: []string{"a", "b"}, Methods: []string{"get"}, Users: []string{}, Env: "PATH"}.Validate()
	if err == nil {
		t.Fatal("there is none")
	}
	for _, part := range []string{`"A" is`, "hosts[0]", "hosts[1]", "header", "methods[0]", "users", "env"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: nothing about %s", err, part)
		}
	}
}

func TestValuesArriveAsTheyAre(t *testing.T) {
	for _, test := range []struct {
		place Place
		value string
		says  string
	}{
		{bearer, "ghp_x", ""},
		{bearer, strings.Repeat("x", 16<<10), ""},
		{bearer, strings.Repeat("x", 16<<10+1), "value has 16385 bytes"},
		{bearer, "a b\tc", ""},
		{bearer, "s3cret ", "a blank"},
		{Place{Header: "X-Key", Template: "{secret}"}, " s3cret", "a blank"},
		{Place{Header: "X-Key", Template: "key={secret}; a"}, "s3cret ", ""},
		{Place{Basic: "x"}, " s3cret ", ""},
		{bearer, "s3cret\n", "a line break"},
		{bearer, "s3cret\r\nX-Other: y", "a line break"},
		{Place{Query: "key"}, "s3cret\r", "a line break"},
		{Place{Basic: "x"}, "s3cret\x00", "a control character"},
		{bearer, "s3cret\x7f", "a control character"},
	} {
		err := test.place.checkValue(test.value)
		if test.says == "" && err != nil {
			t.Errorf("%.20q: %v", test.value, err)
		}
		if test.says != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%.20q: %v, want %s", test.value, err, test.says)
		}
	}
}
