package policy_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

// long is a name of 253 characters.
var long = strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 62) + ".c"

// longBelow is the longest name that a wildcard can be over.
var longBelow = long[2:]

func TestParseDomain(t *testing.T) {
	if len(long) != 253 {
		t.Fatal(len(long)) // the bounds below would be off
	}
	tests := []struct{ pattern, want string }{
		{"example.com", "example.com"},
		{"a.b.c.example.com", "a.b.c.example.com"},
		{"EXAMPLE.Com", "example.com"},
		{"example.com.", "example.com"},
		{"EXAMPLE.com.", "example.com"},
		{"*.example.com", "*.example.com"},
		{"*.EXAMPLE.com.", "*.example.com"},
		{"*", "*"},
		{"1.example.com", "1.example.com"},
		{"0x7f.example.com", "0x7f.example.com"},
		{"4chan.org", "4chan.org"},
		{"example.0xyz", "example.0xyz"},
		{"example.1a", "example.1a"},
		{"a-b.example.com", "a-b.example.com"},
		{"r3---sn-apo3qvuoxuxbt-j5pe.googlevideo.com", "r3---sn-apo3qvuoxuxbt-j5pe.googlevideo.com"},
		{strings.Repeat("a", 63) + ".com", strings.Repeat("a", 63) + ".com"},
		{long, long},
		{"*." + longBelow, "*." + longBelow},

		// IDNA.
		{"bücher.example", "xn--bcher-kva.example"},
		{"BÜCHER.example", "xn--bcher-kva.example"},
		{"bu\u0308cher.example", "xn--bcher-kva.example"},
		{"*.bücher.example", "*.xn--bcher-kva.example"},
		{"xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		{"faß.de", "xn--fa-hia.de"},
		{"ｅｘａｍｐｌｅ．ｃｏｍ", "example.com"},
		{"example。com", "example.com"},
		{"example｡com．", "example.com"},
		{"日本語.jp", "xn--wgv71a119e.jp"},
		{"\u212aelvin.example", "kelvin.example"}, // the sign for kelvin
		// What looks alike is another name, and the canonical form shows that.
		{"ехаmрle.com", "xn--mle-5cdy2e6a.com"},

		// A public suffix alone may be a host (www.gov.uk's shorter name); a wildcard over one may not.
		{"gov.uk", "gov.uk"},
		{"co.uk", "co.uk"},
		{"*.example.co.uk", "*.example.co.uk"},
		{"*.www.ck", "*.www.ck"},
		{"*.city.kawasaki.jp", "*.city.kawasaki.jp"},
		{"*.a.b.kawasaki.jp", "*.a.b.kawasaki.jp"},
		// The list's private section is about cookies, not about who owns a zone.
		{"*.github.io", "*.github.io"},
		{"*.s3.amazonaws.com", "*.s3.amazonaws.com"},
		// No registry has these.
		{"*.internal", "*.internal"},
		{"*.lan", "*.lan"},
	}
	for _, tt := range tests {
		got, err := policy.ParseDomain(tt.pattern)
		if err != nil || got.String() != tt.want {
			t.Errorf("ParseDomain(%q) = %q, %v, want %q", tt.pattern, got, err, tt.want)
		}
		if again, err := policy.ParseDomain(got.String()); err != nil || again != got {
			t.Errorf("ParseDomain(%q) = %q, %v, want the same", got, again, err)
		}
	}
}

// badDomains are patterns and what is said of each.
var badDomains = []struct{ pattern, says string }{
	{"", "names no domain"},
	{"*.", "names no domain"},

	{"127.0.0.1", "is an IP address"},
	{"127.0.0.1:80", "is an IP address"},
	{"::1", "is an IP address"},
	{"[::1]", "is an IP address"},
	{"[::1]:443", "is an IP address"},
	{"[127.0.0.1]", "is an IP address"},
	{"2001:db8::1", "is an IP address"},
	{"fe80::1%eth0", "is an IP address"},
	{"::ffff:127.0.0.1", "is an IP address"},
	{"10.0.0.0/8", "is an IP address"},
	{"2001:db8::/32", "is an IP address"},
	{"127.0.0.1.", "ends in a number"},
	{"127.1", "ends in a number"},
	{"010.0.0.1", "ends in a number"},
	{"256.256.256.256", "ends in a number"},
	{"0x7f.1", "ends in a number"},
	{"127.0x1", "ends in a number"},
	{"127.0X1", "ends in a number"},
	{"127.0x", "ends in a number"},
	{"0x7f000001", "ends in a number"},
	{"2130706433", "ends in a number"},
	{"017700000001", "ends in a number"},
	{"１２７.０.０.１", "ends in a number"},
	{"127。0。0。1", "ends in a number"},
	{"①②⑦.example.①", "ends in a number"},
	{"example.1", "ends in a number"},
	{"*.0.0.1", "ends in a number"},
	{"*.127.0.0.1", "is an IP address"},

	{"example.com:443", "has a port"},
	{"*.example.com:443", "has a port"},
	{"example.com:", "has a port"},
	{"mailto:example.com", "or a scheme"},
	{"https://example.com", "is a URL"},
	{"https://example.com/a?b#c", "is a URL"},
	{"*://example.com", "is a URL"},
	{"//example.com", "has a path"},
	{"example.com/", "has a path"},
	{"example.com/path", "has a path"},
	{"/example.com", "has a path"},
	{`example.com\evil.org`, "has a path"},
	{"example.com?q", "has a path"},
	{"example.com#f", "has a path"},
	{"user@example.com", "has a user"},
	{"user:password@example.com", "has a user"},

	{"**", "not the whole first label"},
	{"*.*", "not the whole first label"},
	{"*.*.com", "not the whole first label"},
	{"**.example.com", "not the whole first label"},
	{"*foo.com", "not the whole first label"},
	{"foo*.com", "not the whole first label"},
	{"a.*.com", "not the whole first label"},
	{"a*b.example.com", "not the whole first label"},
	{"example.*", "not the whole first label"},
	{"*example", "not the whole first label"},
	{"*。example.com", "not the whole first label"},
	{"＊.example.com", "is no host name"},
	{"?.example.com", "has a path"},

	{"*.com", "everyone who has a name below com"},
	{"*.COM.", "everyone who has a name below com"},
	{"*.co.uk", "everyone who has a name below co.uk"},
	{"*.gov.uk", "everyone who has a name below gov.uk"},
	{"*.рф", "everyone who has a name below xn--p1ai"},
	{"*.公司.cn", "everyone who has a name below xn--55qx5d.cn"},
	{"*.ck", "everyone who has a name below ck"},
	{"*.anything.ck", "everyone who has a name below anything.ck"},
	{"*.kawasaki.jp", "everyone who has a name below kawasaki.jp"},
	{"*.foo.kawasaki.jp", "everyone who has a name below foo.kawasaki.jp"},
	{"*.in-addr.arpa", "everyone who has a name below in-addr.arpa"},

	{"com", "has no dot"},
	{"COM.", "has no dot"},
	{"localhost", "has no dot"},
	{"github", "has no dot"},
	{"рф", "has no dot"},

	{".", "empty label"},
	{"..", "empty label"},
	{".example.com", "empty label"},
	{"example..com", "empty label"},
	{"example.com..", "empty label"},
	{"example.com.。", "empty label"},
	{"*..example.com", "empty label"},
	{"*..", "empty label"},
	{"xn--.com", "empty label"},
	{"example.com.xn--", "empty label"},
	{"example.com.xn--.", "empty label"},

	{strings.Repeat("a", 64) + ".com", "a label of 64 characters"},
	{strings.Repeat("ü", 60) + ".com", "a label of"},
	{"a." + long, "a name has at most 253"},
	{"*." + long, "leaves no room"},
	{"*.a" + longBelow, "leaves no room"},
	{strings.Repeat("a", 1<<20), "is too long"},
	{"*." + strings.Repeat("a.", 1<<20), "is too long"},

	{"example.com\x00", "a control character"},
	{"example.com\n", "a control character"},
	{"exa\tmple.com", "a control character"},
	{"\x1b[31mexample.com", "a control character"},
	{"example.com\u0085", "a control character"},
	{" example.com", "a space"},
	{"example.com ", "a space"},
	{"exa mple.com", "a space"},
	{"exa\u00a0mple.com", "a space"},
	{"exa\u3000mple.com", "a space"},
	{"exa\u00admple.com", "cannot be seen"},
	{"exa\u200bmple.com", "cannot be seen"},
	{"exa\u034fmple.com", "cannot be seen"},
	{"exa\u2060mple.com", "cannot be seen"},
	{"exa\ufe0fmple.com", "cannot be seen"},
	{"\ufeffexample.com", "cannot be seen"},
	{"\u202emoc.elpmaxe", "cannot be seen"},
	{"exa\u200dmple.com", "is no host name"},
	{"\xff.com", "is not UTF-8"},
	{"example\xc0\xae.com", "is not UTF-8"},

	{"_dmarc.example.com", "has an underscore"},
	{"a_b.example.com", "has an underscore"},
	{"*._tcp.example.com", "has an underscore"},
	{"-a.example.com", "begins or ends with a hyphen"},
	{"a-.example.com", "begins or ends with a hyphen"},
	{"*.-", "begins or ends with a hyphen"},
	{"a,b.com", "is no host name"},
	{"a.com,b.com", "is no host name"},
	{"$(id).com", "is no host name"},
	{"a%2e.com", "is no host name"},
	{"[example.com]", "is no host name"},
	{"example℀com.org", "is no host name"}, // a/c
	{"example．com：80", "is no host name"},
	{"⒈example.com", "is no host name"}, // 1 and a dot in one
	{"a…b.com", "is no host name"},      // three dots in one
	{"xn--a.com", "is no host name"},
	{"xn--example-.com", "is no host name"}, // example, disguised
	{"xn--\u00fc.com", "is no host name"},
	{"xn--zzzzzzzzzzzz99999.com", "is no host name"},
	{"אa.com", "is no host name"}, // writing directions mixed
}

func TestParseDomainRefuses(t *testing.T) {
	for _, tt := range badDomains {
		got, err := policy.ParseDomain(tt.pattern)
		if !errdefs.IsInvalidArgument(err) || got != (policy.Domain{}) {
			t.Errorf("ParseDomain(%.80q) = %q, %v, want an invalid argument", tt.pattern, got, err)
			continue
		}
		if says := err.Error(); !strings.Contains(says, tt.says) || len(says) > 1<<10 || strings.ContainsAny(says, "\x00\x1b\n") {
			t.Errorf("ParseDomain(%.80q): %.1200q, want it to say %q", tt.pattern, says, tt.says)
		}
	}
}

func TestParseDomainNamesTheValue(t *testing.T) {
	_, err := policy.ParseDomain("https://example.com/a")
	if want := `"https://example.com/a" is a URL; name its host alone`; err == nil || err.Error() != want {
		t.Errorf("ParseDomain: %v, want %s", err, want)
	}
}

// FuzzParseDomain: whatever is accepted is of one form, which is read as itself, and stands for itself.
func FuzzParseDomain(f *testing.F) {
	for _, tt := range badDomains {
		if len(tt.pattern) < 2000 {
			f.Add(tt.pattern)
		}
	}
	for _, s := range []string{"*", "*.example.com", "BÜCHER.example.", "ｅｘａｍｐｌｅ．ｃｏｍ", "xn--bcher-kva.de", "a-b.0x.c", "a\u200c.नी", long} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := policy.ParseDomain(s)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || d != (policy.Domain{}) {
				t.Fatalf("ParseDomain(%q) = %q, %v", s, d, err)
			}
			return
		}
		checkCanonical(t, d.String())
		if again, err := policy.ParseDomain(d.String()); err != nil || again != d {
			t.Fatalf("ParseDomain(%q) = %q, which is read as %q, %v", s, d, again, err)
		}
		set := domains(t, s)
		if set.Everything() != (s == "*") {
			t.Fatalf("%q: Everything() = %v", s, set.Everything())
		}
		name, below := strings.CutPrefix(d.String(), "*.")
		if name != "*" && set.Allows(name) == below {
			t.Fatalf("%q (%s) allows %s: %v", s, d, name, !below)
		}
		if below != set.Allows("a."+name) && name != "*" && len(name) < 252 {
			t.Fatalf("%q (%s) allows a.%s: %v", s, d, name, !below)
		}
	})
}

// checkCanonical is the form of a pattern, said another way than it is made.
func checkCanonical(t *testing.T, pattern string) {
	t.Helper()
	name := strings.TrimPrefix(pattern, "*.")
	if pattern == "*" {
		return
	}
	labels := strings.Split(name, ".")
	good := len(pattern) <= 253 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" &&
		strings.Trim(labels[len(labels)-1], "0123456789") != "" && (pattern != name || len(labels) > 1)
	for _, label := range labels {
		good = good && label != "" && len(label) <= 63 && strings.Trim(label, "-") == label
	}
	if !good {
		t.Fatalf("%q is not canonical", pattern)
	}
}
