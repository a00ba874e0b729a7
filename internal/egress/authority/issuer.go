package authority

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/policy"
)

const day = 24 * time.Hour

// How long certificates are good. Those of the authority begin anew at half their time, so that a
// container may trust one for five years at least.
const (
	lifetime     = 10 * 365 * day
	leafLifetime = 30 * day
	early        = day // before they are made, for clocks that are behind
)

// maxLeaves is how many leaves an issuer remembers: below a wildcard there is no end of names.
const maxLeaves = 256

// begins returns when those certificates of the authority begin that are for the present.
func (own *identity) begins(now time.Time) time.Time {
	const each = lifetime / 2
	return own.madeAt.Add(now.Sub(own.madeAt) / each * each).Add(-early)
}

// Issuer issues leaves for one set of hosts. It is safe for concurrent use.
type Issuer struct {
	certificate  *x509.Certificate
	hosts        policy.Domains
	key, leafKey *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by host
}

// newIssuer makes the certificate of the authority for hosts, which are sorted. It is a function of
// its arguments, signature and all. Where another release of Go encodes it otherwise, containers
// still trust what they have: names and key are the same.
func newIssuer(hosts []string, key, leafKey *ecdsa.PrivateKey, begins time.Time) (*Issuer, error) {
	allowed, err := parseHosts(hosts)
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	keyID := sha256.Sum256(public)
	set := sha256.Sum256([]byte(strings.Join(hosts, " ")))
	serial := sha256.Sum256(slices.Concat(keyID[:], set[:], begins.AppendFormat(nil, time.RFC3339)))
	form := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial[:16]),
		Subject: pkix.Name{
			CommonName: "daycare-sandbox credentials " + hex.EncodeToString(set[:8])},
		SubjectKeyId: keyID[:20],
		NotBefore:    begins, NotAfter: begins.Add(lifetime),
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,

		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         permitted(hosts),
		ExcludedIPRanges: []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}},
	}
	// Without random numbers the signature is that of RFC 6979, always the same.
	encoded, err := x509.CreateCertificate(nil, form, form, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		return nil, err
	}
	return &Issuer{certificate: certificate, hosts: allowed, key: key, leafKey: leafKey,
		leaves: map[string]*tls.Certificate{}}, nil
}

func parseHosts(hosts []string) (policy.Domains, error) {
	if len(hosts) == 0 { // a certificate without constraints would be good for all names
		return policy.Domains{}, errors.New("there are no hosts")
	}
	for _, host := range hosts {
		domain, err := policy.ParseDomain(host)
		if err != nil {
			return policy.Domains{}, err
		}
		if domain.String() != host || host == "*" {
			return policy.Domains{}, fmt.Errorf("%q is no host in canonical form", host)
		}
	}
	return policy.ParseDomains(hosts)
}

// permitted returns the constraints for hosts. For what is below a name that is .name, which RFC 5280
// does not have for DNS, but OpenSSL, GnuTLS and Go know. A name permits all names below it, too:
// there is no constraint to a name alone. Leaf is exact.
func permitted(hosts []string) []string {
	var names []string
	for _, host := range hosts {
		names = append(names, strings.TrimPrefix(host, "*"))
	}
	return names
}

// Certificate returns the certificate of the authority, which signs itself. Nobody changes it.
func (i *Issuer) Certificate() *x509.Certificate { return i.certificate }

// Leaf returns a certificate for a host, whose name is in canonical form, with its key. It is good
// for ten days at least. A host that the issuer is not for is an error.
func (i *Issuer) Leaf(host string) (*tls.Certificate, error) {
	if !i.hosts.Allows(host) || host != strings.ToLower(strings.TrimSuffix(host, ".")) {
		return nil, fmt.Errorf("no certificate for %.200q: its issuer is for %s alone", host,
			strings.Join(i.hosts.List(), ", "))
	}
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if leaf := i.leaves[host]; leaf != nil && leaf.Leaf.NotAfter.Sub(now) > leafLifetime/3 {
		return leaf, nil
	}
	leaf, err := i.issue(host, now)
	if err != nil {
		return nil, fmt.Errorf("no certificate for %q: %w", host, err)
	}
	makeRoom(i.leaves, maxLeaves)
	i.leaves[host] = leaf
	return leaf, nil
}

func (i *Issuer) issue(host string, now time.Time) (*tls.Certificate, error) {
	form := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "daycare-sandbox egress"}, // no name of a host: those are below
		DNSNames:  []string{host},
		NotBefore: now.Add(-early), NotAfter: now.Add(leafLifetime),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	encoded, err := x509.CreateCertificate(rand.Reader, form, i.certificate, &i.leafKey.PublicKey,
		i.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(encoded)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{encoded}, PrivateKey: i.leafKey, Leaf: leaf}, nil
}
