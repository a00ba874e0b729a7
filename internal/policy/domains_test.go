package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/policy"
)

func domains(t testing.TB, patterns ...string) policy.Domains {
	t.Helper()
	d, err := policy.ParseDomains(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAllows is the wildcard table.
func TestAllows(t *testing.T) {
	tests := []struct {
		patterns string // separated by spaces
		allowed  []string
		denied   []string
	}{
		{"", nil, []string{"example.com", "a", "", ".", "*", "*.example.com"}},
		{"example.com",
			[]string{"example.com", "EXAMPLE.com", "example.com.", "ExAmPlE.cOm."},
			[]string{"a.example.com", "evilexample.com", "example.com.evil.org", "com", "example", "example.co", "xample.com",
				"example.com..", ".example.com", "example..com", "example.com:443", "example.com/", " example.com", "example.com\x00",
				"example.com\x00.evil.org", "ｅｘａｍｐｌｅ.com", "example。com", "EXAMPLE.com\n", "*.example.com", "", ".", "\u212aexample.com"}},
		{"*.example.com",
			[]string{"a.example.com", "a.b.example.com", "A.Example.COM.", "a.b.c.d.e.f.example.com", "xn--bcher-kva.example.com",
				"_dmarc.example.com", "a_b.example.com", "-.example.com", "r3---sn-x.example.com", "1.example.com",
				"com.example.com", "example.com.example.com", strings.Repeat("a", 63) + ".example.com"},
			[]string{"example.com", "EXAMPLE.com.", "evilexample.com", "a.evilexample.com", "example.com.evil.org", "a.example.com.evil.org",
				".example.com", "..example.com", "a..example.com", "*.example.com", "a*.example.com", "a\\.example.com", "bücher.example.com",
				"a/.example.com", "a:1.example.com", "a@b.example.com", "a%2eb.example.com", "a\x00.example.com", "a .example.com",
				"a.example.com:443", "com", strings.Repeat("a", 64) + ".example.com", strings.Repeat("a.", 122) + "example.com"}},
		{"*.example.com example.com", []string{"example.com", "a.example.com"}, []string{"evilexample.com", "example.org"}},
		{"bücher.example",
			[]string{"xn--bcher-kva.example", "XN--BCHER-KVA.example."},
			[]string{"bücher.example", "bucher.example", "a.xn--bcher-kva.example", "xn--bcher-kva.example.org"}},
		{"*.ＢÜＣＨＥＲ。example", []string{"a.xn--bcher-kva.example"}, []string{"xn--bcher-kva.example", "a.bucher.example"}},
		{"*.b.example.com a.example.org",
			[]string{"a.b.example.com", "a.example.org"},
			[]string{"b.example.com", "a.example.com", "a.c.example.com", "example.org", "b.example.org", "a.a.example.org"}},
		{"*", []string{"example.com", "a", "127.0.0.1", "xn--a.com"}, nil},
		{"* example.com", []string{"example.com", "other.org"}, nil},
		{long, []string{long, long + ".", strings.ToUpper(long)}, []string{long + "..", "a" + long, long[1:]}},
		{"*." + longBelow, []string{"a." + longBelow, "a." + longBelow + "."}, []string{longBelow, "aa." + longBelow}},
	}
	for _, tt := range tests {
		d := domains(t, strings.Fields(tt.patterns)...)
		for _, name := range tt.allowed {
			if !d.Allows(name) {
				t.Errorf("%q does not allow %q", tt.patterns, name)
			}
		}
		for _, name := range tt.denied {
			if d.Allows(name) {
				t.Errorf("%q allows %q", tt.patterns, name)
			}
		}
	}
}

// TestAddressesAreNeverAllowed but by *, whatever their form.
func TestAddressesAreNeverAllowed(t *testing.T) {
	d := domains(t, "*.internal", "*.example.com", "a.example.org")
	for _, name := range []string{"127.0.0.1", "127.1", "0x7f.1", "2130706433", "::1", "[::1]", "[::1]:80", "1.0.0.127.in-addr.arpa"} {
		if d.Allows(name) {
			t.Errorf("%v allows %q", d.List(), name)
		}
	}
}

func TestDomainsAreCanonical(t *testing.T) {
	tests := []struct{ patterns, want string }{
		{"", ""},
		{"b.com a.com", "a.com b.com"},
		{"a.com A.com a.com. ａ.com", "a.com"},
		{"*.a.com a.com", "*.a.com a.com"},
		// What another allows is left out.
		{"*.a.com b.a.com c.b.a.com *.b.a.com", "*.a.com"},
		{"*.b.a.com b.a.com a.com *.a.com", "*.a.com a.com"},
		{"*.b.a.com a.a.com", "*.b.a.com a.a.com"},
		{"*.a.com a.com.org ba.com", "*.a.com a.com.org ba.com"},
		{"a.com * *.b.com", "*"},
		{"* *", "*"},
	}
	for _, tt := range tests {
		patterns, want := strings.Fields(tt.patterns), append([]string{}, strings.Fields(tt.want)...)
		d := domains(t, patterns...)
		if got := d.List(); got == nil || !slices.Equal(got, want) {
			t.Errorf("List of %q is %q, want %q", tt.patterns, got, tt.want)
		}
		slices.Reverse(patterns)
		if other := domains(t, patterns...); !d.Equal(other) || !d.Equal(domains(t, want...)) {
			t.Errorf("%q is not equal to itself in another order, or to what it comes to", tt.patterns)
		}
		if got := d.Everything(); got != (tt.want == "*") {
			t.Errorf("%q is everything: %v", tt.patterns, got)
		}
	}
}

func TestDomainsAreNotEqual(t *testing.T) {
	all := []policy.Domains{{}, domains(t, "*"), domains(t, "a.com"), domains(t, "*.a.com"), domains(t, "a.com", "*.a.com"), domains(t, "b.com"), domains(t, "a.com", "b.com")}
	for i, a := range all {
		for j, b := range all {
			if a.Equal(b) != (i == j) {
				t.Errorf("%v equals %v: %v", a.List(), b.List(), a.Equal(b))
			}
		}
	}
}

func TestUnion(t *testing.T) {
	a, b := domains(t, "b.com", "*.c.com"), domains(t, "a.com", "x.c.com", "b.com")
	if got := a.Union(b); !got.Equal(domains(t, "a.com", "b.com", "*.c.com")) || !got.Equal(b.Union(a)) {
		t.Errorf("Union: %v", got.List())
	}
	if got := a.Union(policy.Domains{}); !got.Equal(a) {
		t.Errorf("Union with nothing: %v", got.List())
	}
	if got := a.Union(domains(t, "*")); !got.Everything() || !got.Allows("other.org") {
		t.Errorf("Union with everything: %v", got.List())
	}
	if got := (policy.Domains{}).Union(policy.Domains{}); !got.Equal(policy.Domains{}) || got.Everything() || got.Allows("a.com") {
		t.Errorf("Union of nothing: %v", got.List())
	}
	if !a.Equal(domains(t, "b.com", "*.c.com")) || a.Allows("a.com") {
		t.Errorf("Union changed the set: %v", a.List())
	}
}

func TestDomainsDoNotChange(t *testing.T) {
	d := domains(t, "a.com", "b.com")
	d.List()[0] = "*"
	if d.Everything() || !d.Equal(domains(t, "a.com", "b.com")) {
		t.Errorf("changed through List: %v", d.List())
	}
}

func TestParseDomainsJoinsAllFaults(t *testing.T) {
	d, err := policy.ParseDomains([]string{"a.com", "*.com", "b.com", "127.0.0.1", ""})
	if !errdefs.IsInvalidArgument(err) || len(faults(err)) != 3 || !d.Equal(policy.Domains{}) {
		t.Errorf("ParseDomains = %v, %v", d.List(), err)
	}
}

// FuzzAllows holds the set against looking at each pattern in turn.
func FuzzAllows(f *testing.F) {
	f.Add("example.com *.example.org", "a.EXAMPLE.org.")
	f.Add("*.b.a.com *.a.com b.a.com", "b.a.com")
	f.Add("*.example.com", "a..example.com")
	f.Add("* a.com", "\x00")
	f.Add("*.bücher.example a-b.c", "x.xn--bcher-kva.example")
	f.Fuzz(func(t *testing.T, list, name string) {
		var patterns []string
		for _, s := range strings.Fields(list) {
			if d, err := policy.ParseDomain(s); err == nil {
				patterns = append(patterns, d.String())
			}
		}
		d := domains(t, patterns...)
		// Near misses of the patterns themselves, as well as what the fuzzer came up with.
		names := []string{name, strings.ToUpper(name), name + "."}
		for _, p := range patterns {
			base := strings.TrimPrefix(p, "*.")
			names = append(names, base, "a."+base, "A.b."+base+".", "evil"+base, base+".evil.org", "."+base, name+"."+base, base+"."+name, base[1:])
		}
		for _, name := range names {
			want := slices.ContainsFunc(patterns, func(p string) bool { return naively(p, name) })
			if got := d.Allows(name); got != want {
				t.Fatalf("%q allows %q: %v, want %v", patterns, name, got, want)
			}
		}
		if again := domains(t, d.List()...); !again.Equal(d) || len(d.List()) > len(patterns) {
			t.Fatalf("%q comes to %q, and that to %q", patterns, d.List(), again.List())
		}
	})
}

// naively is the rule of a pattern.
func naively(pattern, name string) bool {
	if pattern == "*" {
		return true
	}
	name = strings.TrimSuffix(name, ".")
	for _, r := range name {
		if r > 'z' || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r) {
			return false
		}
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
	}
	name = strings.ToLower(name)
	if base, ok := strings.CutPrefix(pattern, "*"); ok {
		return len(name) <= 253 && strings.HasSuffix(name, base)
	}
	return name == pattern
}

func many(tb testing.TB, n int) policy.Domains {
	patterns := []string{"*.example.com"}
	for i := range n - 1 {
		patterns = append(patterns, fmt.Sprintf("%sname%04d.example.org", []string{"", "*."}[i%2], i))
	}
	d := domains(tb, patterns...)
	if len(d.List()) != n {
		tb.Fatal(len(d.List()))
	}
	return d
}

func TestAllowsAllocatesNothing(t *testing.T) {
	d := many(t, 1000)
	for _, name := range []string{"a.b.example.com", "A.B.example.com.", "denied.example.net", long, strings.Repeat("a.", 126) + "a"} {
		if n := testing.AllocsPerRun(100, func() { d.Allows(name) }); n != 0 {
			t.Errorf("Allows(%q) allocates %v times", name, n)
		}
	}
}

func BenchmarkAllows(b *testing.B) {
	for _, n := range []int{1, 1000} {
		d := many(b, n)
		for _, name := range []string{"registry.a.example.com", "REGISTRY.a.example.com.", "registry.denied.example.net", strings.Repeat("a.", 126) + "a"} {
			b.Run(fmt.Sprintf("%d/%.30s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					d.Allows(name)
				}
			})
		}
	}
}

func BenchmarkParseDomains(b *testing.B) {
	for _, n := range []int{1, 1000} {
		patterns := many(b, n).List()
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := policy.ParseDomains(patterns); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
