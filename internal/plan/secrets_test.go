package plan_test

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

// secretLab plans calls of alice, whose sandbox holds all credentials that tests name.
type secretLab struct {
	t       *testing.T
	planner *plan.Planner
	cfg     plan.Config
}

func newSecretLab(t *testing.T, platform plan.PlatformConfig, list ...credential.Credential) *secretLab {
	t.Helper()
	l := &secretLab{t: t, cfg: plan.Config{MaxDomains: 10, Egress: policy.EgressRules{AllowGlobalWildcard: true}}}
	plantest.AddCredentials(t, &l.cfg, list...)
	l.planner = plantest.New(t, rootfs.Config{UsersDir: filepath.Join(t.TempDir(), "users")}, plan.NewPlatforms(platform), nil)
	l.planner.Use(l.cfg)
	return l
}

func (l *secretLab) plan(domains string, secrets ...string) (plan.Plan, error) {
	l.t.Helper()
	user, err := ids.ParseUser("alice")
	if err != nil {
		l.t.Fatal(err)
	}
	box := registry.Sandbox{User: user, WorkingDir: policy.Home, Network: true, Secrets: []string{"github", "npm", "other", "bobs", "gone"}}
	asked := plan.Confinement{}
	if domains != "" {
		asked.Permissions, asked.AllowedDomains = []string{policy.TagNetwork}, strings.Fields(domains)
	}
	for _, name := range secrets {
		asked.Permissions = append(asked.Permissions, policy.TagSecret+name)
	}
	c, err := l.planner.Resolve(box, asked)
	if err != nil {
		l.t.Fatal(err)
	}
	d, err := l.planner.Decide(c)
	if err != nil {
		return plan.Plan{}, err
	}
	return l.planner.Plan(l.t.Context(), d, false)
}

func (l *secretLab) planned(domains string, secrets ...string) plan.Plan {
	l.t.Helper()
	p, err := l.plan(domains, secrets...)
	if err != nil {
		l.t.Fatalf("%q with %q: %v", domains, secrets, err)
	}
	return p
}

func bearer(name, env string, hosts ...string) credential.Credential {
	return credential.Credential{Name: name, Hosts: hosts, Env: env,
		Place: credential.Place{Header: "Authorization", Template: "Bearer {secret}"}}
}

// variable is a variable of a command, or "".
func variable(env []string, name string) (value string) {
	for _, entry := range env {
		if is, ok := strings.CutPrefix(entry, name+"="); ok {
			value = is
		}
	}
	return value
}

// A call that asks for credentials has a container of its own, with their placeholders, in which programs trust the
// authority for their hosts. Another call has nothing of that.
func TestACallWithCredentials(t *testing.T) {
	l := newSecretLab(t, plantest.Platform(t), bearer("github", "GITHUB_TOKEN", "api.github.com"), bearer("npm", "", "registry.npmjs.org"))
	without, with := l.planned("api.github.com"), l.planned("api.github.com", "npm", "github", "npm")
	if got := with.Spec.Egress.Secrets; !slices.Equal(got, []string{"github", "npm"}) || with.SecretsUnused() != "" {
		t.Errorf("%q, unused: %s", got, with.SecretsUnused())
	}
	if with.Spec.Fingerprint() == without.Spec.Fingerprint() || with.Held() == without.Held() {
		t.Error("with credentials or without, it is one container")
	}
	if with.Spec.Platform.Bundle != without.Spec.Platform.Bundle || without.Spec.Bundle != "" || without.Spec.Egress.Secrets != nil {
		t.Errorf("of all containers: %+v, without: %+v", with.Spec.Platform, without.Spec)
	}
	text, err := os.ReadFile(with.Spec.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"api.github.com", "registry.npmjs.org"} { // each is trusted by itself
		issuer, err := l.cfg.Authority.For([]string{host})
		if err != nil {
			t.Fatal(err)
		}
		block, rest := pem.Decode(text)
		if block == nil || !bytes.Equal(block.Bytes, issuer.Certificate().Raw) {
			t.Fatalf("for %s: %s", host, text)
		}
		text = rest
	}
	if len(text) != 0 {
		t.Errorf("there is more: %s", text)
	}
	stored, err := l.cfg.Credentials.Get("github")
	if err != nil || stored.Placeholder == "" {
		t.Fatalf("%+v, %v", stored, err)
	}
	env := with.Environment()
	for name, want := range map[string]string{"GITHUB_TOKEN": stored.Placeholder, "SSL_CERT_FILE": with.Spec.BundleAt} {
		if got := variable(env, name); got != want || want == "" {
			t.Errorf("%s=%s, not %q", name, got, want)
		}
		if got := variable(without.Environment(), name); got != "" {
			t.Errorf("without: %s=%s", name, got)
		}
	}
	if got := variable(with.Environment(map[string]string{"GITHUB_TOKEN": "mine"}), "GITHUB_TOKEN"); got != "mine" {
		t.Errorf("what the call gives counts for nothing: %s", got)
	}
	if strings.Contains(strings.Join(env, "\n"), "the value of") {
		t.Errorf("a value is inside: %q", env)
	}
}

// Where nobody looks at what a call sends, its credentials make no difference.
func TestCredentialsThatAreNotPutIn(t *testing.T) {
	l := newSecretLab(t, plantest.Platform(t), bearer("github", "GITHUB_TOKEN", "api.github.com"))
	for domains, why := range map[string]string{"": "no network", "*": "reaches all names"} {
		p := l.planned(domains, "github")
		if !strings.Contains(p.SecretsUnused(), why) {
			t.Errorf("%q: %q", domains, p.SecretsUnused())
		}
		if got := variable(p.Environment(), "GITHUB_TOKEN"); got != "" || p.Spec.Bundle != "" || len(p.Spec.Egress.Secrets) != 0 {
			t.Errorf("%q: %s, %+v", domains, got, p.Spec)
		}
		if without := l.planned(domains); without.Spec.Fingerprint() != p.Spec.Fingerprint() {
			t.Errorf("%q: it has a container of its own", domains)
		}
	}
}

// A call is refused a credential that is not registered, that its user may not have, or whose placeholder is where
// another's is.
func TestCredentialsThatAreRefused(t *testing.T) {
	bobs := bearer("bobs", "", "b.example")
	bobs.Users = []string{"bob"}
	l := newSecretLab(t, plantest.Platform(t), bearer("github", "GITHUB_TOKEN", "api.github.com"), bearer("other", "GITHUB_TOKEN", "o.example"), bobs)
	for _, tt := range []struct {
		secrets string
		is      func(error) bool
		says    string
	}{
		{"gone", cerrdefs.IsConflict, "@secret:gone: no credential of that name is registered: the operator can do that with `sandbox credential set gone`"},
		{"bobs", cerrdefs.IsPermissionDenied, `@secret:bobs: that credential is not for user "alice"`},
		{"github other", cerrdefs.IsInvalidArgument, "the placeholders of @secret:github and @secret:other are both in GITHUB_TOKEN"},
		{"nobodys", cerrdefs.IsPermissionDenied, "@secret:nobodys is not granted to this sandbox"},
	} {
		for _, domains := range []string{"", "a.example"} {
			if _, err := l.plan(domains, strings.Fields(tt.secrets)...); !tt.is(err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s to %q: %v", tt.secrets, domains, err)
			}
		}
	}
	l.planner.Use(plan.Config{MaxDomains: 10}) // where there are none
	if _, err := l.plan("a.example", "github"); !cerrdefs.IsConflict(err) {
		t.Error(err)
	}
}

// Another value is put in without another container. Other hosts need one that trusts the authority for them.
func TestACredentialThatIsChanged(t *testing.T) {
	github := bearer("github", "GITHUB_TOKEN", "api.github.com")
	l := newSecretLab(t, plantest.Platform(t), github)
	before := l.planned("api.github.com", "github")
	if _, _, err := l.cfg.Credentials.Put(github, "another value"); err != nil {
		t.Fatal(err)
	}
	same := l.planned("api.github.com", "github")
	if same.Spec.Fingerprint() != before.Spec.Fingerprint() || variable(same.Environment(), "GITHUB_TOKEN") != variable(before.Environment(), "GITHUB_TOKEN") {
		t.Error("another value makes another container, or another placeholder")
	}
	github.Hosts = append(github.Hosts, "uploads.github.com")
	if _, _, err := l.cfg.Credentials.Put(github, "another value"); err != nil {
		t.Fatal(err)
	}
	if other := l.planned("api.github.com", "github"); other.Spec.Bundle == before.Spec.Bundle || other.Spec.Fingerprint() == before.Spec.Fingerprint() {
		t.Error("with other hosts, it is the same container")
	}
}

// What the operator has all containers trust, those with credentials trust, too.
func TestTheHousesCertificatesStayTrusted(t *testing.T) {
	platform := plantest.Platform(t)
	var house plan.Config
	plantest.AddCredentials(t, &house)
	issuer, err := house.Authority.For([]string{"intranet.example"})
	if err != nil {
		t.Fatal(err)
	}
	platform.Certificates = append(platform.Certificates, issuer.Certificate())
	l := newSecretLab(t, platform, bearer("github", "", "api.github.com"))
	p := l.planned("api.github.com", "github")
	all, err := os.ReadFile(p.Spec.Platform.Bundle)
	own, ownErr := os.ReadFile(p.Spec.Bundle)
	if err != nil || ownErr != nil {
		t.Fatal(err, ownErr)
	}
	if rest, is := strings.CutPrefix(string(own), string(all)); !is || strings.Count(rest, "BEGIN") != 1 || p.Spec.BundleAt != p.Spec.Platform.BundleAt {
		t.Errorf("all: %s\nwith a credential: %s", all, own)
	}
}
