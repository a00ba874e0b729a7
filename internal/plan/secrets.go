package plan

import (
	"fmt"
	"slices"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
)

// A call's credentials are put in outside of its container, into what it sends to their hosts. All
// that its container has of them are placeholders, and the certificate by which it trusts who puts
// them in.

// credential returns a registered credential.
func (c *Config) credential(name string) (credential.Credential, error) {
	if c.Credentials == nil {
		return credential.Credential{}, cerrdefs.ErrNotFound
	}
	return c.Credentials.Get(name)
}

// credentials returns the credentials of those names, if the call's user may have them.
func (c *Call) credentials(names []string) (all []credential.Credential, _ error) {
	setBy := map[string]string{}
	for _, name := range names {
		found, err := c.cfg.credential(name)
		switch {
		case cerrdefs.IsNotFound(err):
			return nil, errs.Conflict(
				"permissions: %s%s: no credential of that name is registered: the operator can do that with `sandbox credential set %s`",
				policy.TagSecret, name, name)
		case err != nil:
			return nil, fmt.Errorf("cannot look up the credential %q: %w", name, err)
		case !found.MayHave(c.User.String()):
			return nil, errs.Denied(
				"permissions: %s%s: that credential is not for user %q: the operator can add the user to it",
				policy.TagSecret, name, c.User)
		}
		if other, set := setBy[found.Env]; set && found.Env != "" {
			return nil, errs.Invalid(
				"permissions: the placeholders of %s%s and %s%s are both in %s: ask for one of them",
				policy.TagSecret, other, policy.TagSecret, name, found.Env)
		}
		setBy[found.Env] = name
		all = append(all, found)
	}
	return all, nil
}

// SecretsUnused returns why the call's credentials are not put in; empty if they are.
func (d Decided) SecretsUnused() string {
	switch {
	case d.Egress.Profile == "":
		return "the call has no network"
	case d.Egress.IsOpen():
		return "the call reaches all names, and then nobody looks at what it sends: name what it is to reach"
	}
	return ""
}

// addCredentials has the call's credentials put in, and the container trust who does that, for the
// credentials' hosts alone.
func (p *Plan) addCredentials() error {
	if len(p.Credentials) == 0 || p.SecretsUnused() != "" {
		return nil
	}
	trusted := slices.Clone(p.platform.certificates)
	for _, c := range p.Credentials {
		p.Spec.Egress.Secrets = append(p.Spec.Egress.Secrets, c.Name)
		issuer, err := p.cfg.Authority.For(c.Hosts) // of each, so that a change of one leaves the others
		if err != nil {
			return cannotTrust(err)
		}
		if !slices.ContainsFunc(trusted, issuer.Certificate().Equal) {
			trusted = append(trusted, issuer.Certificate())
		}
	}
	var err error
	if p.Spec.Bundle, p.Spec.BundleAt, err = p.platform.overrides.OwnBundle(trusted); err != nil {
		return cannotTrust(err)
	}
	return nil
}

func cannotTrust(err error) error {
	return fmt.Errorf("cannot have the container trust who puts its credentials in: %w", err)
}

// placeholders returns the variables that have the placeholders of the credentials that are put in.
func (p Plan) placeholders() map[string]string {
	if len(p.Spec.Egress.Secrets) == 0 {
		return nil
	}
	variables := map[string]string{}
	for _, c := range p.Credentials {
		if c.Env != "" {
			variables[c.Env] = c.Placeholder
		}
	}
	return variables
}
