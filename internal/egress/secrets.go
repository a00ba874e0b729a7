package egress

import (
	"crypto/tls"

	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/authority"
)

// Secrets are the credentials that there are, with the authority that is trusted by the containers
// whose calls have some. They are the guard's Secrets.
type Secrets struct {
	*credential.Store
	Authority *authority.Authority
}

// Leaf returns a certificate for a host that the containers trust which were made with a credential
// for it.
func (s Secrets) Leaf(c credential.Credential, host string) (*tls.Certificate, error) {
	issuer, err := s.Authority.For(c.Hosts)
	if err != nil {
		return nil, err
	}
	return issuer.Leaf(host)
}
