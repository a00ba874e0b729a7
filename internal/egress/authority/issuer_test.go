package authority

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// trusts returns why a client that trusts an issuer alone refuses a certificate for a name.
func trusts(i *Issuer, certificate *x509.Certificate, name string) error {
	roots := x509.NewCertPool()
	roots.AddCert(i.Certificate())
	_, err := certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
	return err
}

func verifies(t testing.TB, i *Issuer, l *tls.Certificate, name string) {
	t.Helper()
	if err := trusts(i, l.Leaf, name); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// opensslTrusts is trusts for OpenSSL, which takes the certificate's form as strictly as it can.
func opensslTrusts(t *testing.T, i *Issuer, certificate *x509.Certificate, name string) (says string, err error) {
	t.Helper()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Fatalf("openssl is needed for this test: install it (apt-get install openssl): %v", err)
	}
	dir := t.TempDir()
	write := func(file string, c *x509.Certificate) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	of := "-verify_hostname"
	if net.ParseIP(name) != nil {
		of = "-verify_ip"
	}
	out, err := exec.Command(openssl, "verify", "-x509_strict", "-purpose", "sslserver", "-no-CAfile", "-no-CApath", "-no-CAstore",
		"-trusted", write("ca.pem", i.Certificate()), of, name, write("leaf.pem", certificate)).CombinedOutput()
	return string(out), err
}

// forge signs a certificate for names with an authority's key, as whoever has stolen it could.
func forge(t *testing.T, a *Authority, i *Issuer, form x509.Certificate) *x509.Certificate {
	t.Helper()
	form.SerialNumber, form.BasicConstraintsValid = big.NewInt(7), true
	form.NotBefore, form.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if !form.IsCA {
		form.KeyUsage, form.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	encoded, err := x509.CreateCertificate(rand.Reader, &form, i.Certificate(), &a.leafKey.PublicKey, a.own.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

var names = []string{"api.github.com", "*.example.com"}

func TestLeavesAreGoodForTheirHosts(t *testing.T) {
	a := newDisk(t).open()
	i := issuer(t, a, names...)
	for _, host := range []string{"api.github.com", "a.example.com", "a.b.example.com", "xn--bcher-kva.example.com"} {
		l := leaf(t, i, host)
		verifies(t, i, l, host)
		if says, err := opensslTrusts(t, i, l.Leaf, host); err != nil {
			t.Errorf("%s: openssl: %v: %s", host, err, says)
		}
		if err := trusts(i, l.Leaf, "other.example.com"); err == nil {
			t.Errorf("%s: it is good for another name", host)
		}
		if !slices.Equal(l.Leaf.DNSNames, []string{host}) || len(l.Leaf.IPAddresses) > 0 || l.Leaf.IsCA ||
			!slices.Equal(l.Leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) ||
			l.Leaf.PublicKey.(*ecdsa.PublicKey).Equal(i.Certificate().PublicKey) {
			t.Errorf("%s: %+v", host, l.Leaf)
		}
		if leaf(t, i, host) != l {
			t.Errorf("%s: it is made for each connection", host)
		}
	}
}

func TestLeavesAreForTheHostsAlone(t *testing.T) {
	i := issuer(t, newDisk(t).open(), names...)
	for _, host := range []string{
		"", "github.com", "x.api.github.com", "example.com", ".example.com", "*.example.com", "evil.test", "aexample.com",
		"API.github.com", "api.github.com.", "api.github.com:443", "127.0.0.1", "a.example.com\x00.evil.test", "a..example.com",
	} {
		if l, err := i.Leaf(host); err == nil || !strings.Contains(err.Error(), "api.github.com") {
			t.Errorf("%q: %v, %v", host, l, err)
		}
	}
}

// With the key alone nobody is taken for another host by a container that trusts an issuer.
func TestAStolenKeyIsGoodForNoOtherName(t *testing.T) {
	a := newDisk(t).open()
	i := issuer(t, a, names...)
	if err := trusts(i, forge(t, a, i, x509.Certificate{DNSNames: names[:1]}), names[0]); err != nil {
		t.Fatal(err) // then the others would be refused for another reason
	}
	other := issuer(t, a, "evil.test")
	for name, test := range map[string]struct {
		certificate *x509.Certificate
		host        string
	}{
		"another name":       {forge(t, a, i, x509.Certificate{DNSNames: []string{"evil.test"}}), "evil.test"},
		"a name above":       {forge(t, a, i, x509.Certificate{DNSNames: []string{"github.com"}}), "github.com"},
		"a wildcard's name":  {forge(t, a, i, x509.Certificate{DNSNames: []string{"example.com"}}), "example.com"},
		"an ending":          {forge(t, a, i, x509.Certificate{DNSNames: []string{"evilexample.com"}}), "evilexample.com"},
		"a wildcard":         {forge(t, a, i, x509.Certificate{DNSNames: []string{"*.github.com"}}), "api.github.com"},
		"one of two names":   {forge(t, a, i, x509.Certificate{DNSNames: []string{"api.github.com", "evil.test"}}), "evil.test"},
		"an address":         {forge(t, a, i, x509.Certificate{IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}), "192.0.2.1"},
		"an IPv6 address":    {forge(t, a, i, x509.Certificate{IPAddresses: []net.IP{net.ParseIP("2001:db8::1")}}), "2001:db8::1"},
		"another set's leaf": {leaf(t, other, "evil.test").Leaf, "evil.test"},
	} {
		host := test.host
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		if err := trusts(i, test.certificate, host); err == nil {
			t.Errorf("%s is trusted", name)
		} else if invalid, is := errors.AsType[x509.CertificateInvalidError](err); name != "another set's leaf" &&
			(!is || invalid.Reason != x509.CANotAuthorizedForThisName) {
			t.Errorf("%s is refused for another reason: %v", name, err)
		}
		says, err := opensslTrusts(t, i, test.certificate, test.host)
		if err == nil || name != "another set's leaf" && !strings.Contains(says, "subtree violation") {
			t.Errorf("%s: openssl: %v: %s", name, err, says)
		}
	}
	below := forge(t, a, i, x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "below"}})
	encoded, err := x509.CreateCertificate(rand.Reader, leaf(t, i, names[0]).Leaf, below, &a.leafKey.PublicKey, a.leafKey)
	if err != nil {
		t.Fatal(err)
	}
	last, err := x509.ParseCertificate(encoded)
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(i.Certificate())
	between.AddCert(below)
	_, err = last.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); !is || invalid.Reason != x509.TooManyIntermediates {
		t.Errorf("an authority below: %v", err)
	}
}

func TestTheCertificateOfTheAuthority(t *testing.T) {
	c := issuer(t, newDisk(t).open(), names...).Certificate()
	if !c.IsCA || !c.MaxPathLenZero || c.MaxPathLen != 0 || c.KeyUsage != x509.KeyUsageCertSign || !c.PermittedDNSDomainsCritical ||
		!slices.Equal(c.PermittedDNSDomains, []string{".example.com", "api.github.com"}) || len(c.ExcludedIPRanges) != 2 ||
		len(c.SubjectKeyId) != 20 || !strings.HasPrefix(c.Subject.CommonName, "daycare-sandbox credentials ") {
		t.Errorf("%+v", c)
	}
	if age := time.Since(c.NotBefore); age < day || age > day+time.Hour || c.NotAfter.Sub(c.NotBefore) != lifetime {
		t.Errorf("from %v to %v", c.NotBefore, c.NotAfter)
	}
	if err := c.CheckSignatureFrom(c); err != nil {
		t.Error(err)
	}
}

func TestLeavesAreRenewedBeforeTheyEnd(t *testing.T) {
	d := newDisk(t)
	synctest.Test(t, func(t *testing.T) {
		i := issuer(t, d.open(), names...)
		first := leaf(t, i, names[0])
		if length := time.Until(first.Leaf.NotAfter); length > leafLifetime || length < leafLifetime-time.Minute {
			t.Errorf("it is good for %v", length)
		}
		waittest.Pass(leafLifetime*2/3 - time.Hour)
		if leaf(t, i, names[0]) != first {
			t.Error("it is renewed too early")
		}
		waittest.Pass(2 * time.Hour)
		next := leaf(t, i, names[0])
		if next == first || next.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
			t.Error("it is not renewed")
		}
		verifies(t, i, next, names[0])
		waittest.Pass(leafLifetime / 2)
		verifies(t, i, leaf(t, i, names[0]), names[0])
		if err := trusts(i, first.Leaf, names[0]); err == nil {
			t.Error("the first has not ended")
		}
	})
}

func TestLeavesAreBounded(t *testing.T) {
	i := issuer(t, newDisk(t).open(), names...)
	for n := range maxLeaves + 20 {
		leaf(t, i, fmt.Sprintf("h%d.example.com", n))
	}
	if len(i.leaves) != maxLeaves {
		t.Errorf("%d are remembered", len(i.leaves))
	}
	verifies(t, i, leaf(t, i, "h0.example.com"), "h0.example.com")
}

// A client that trusts the issuer shakes hands with the leaf.
func TestAHandshakeWithALeaf(t *testing.T) {
	i := issuer(t, newDisk(t).open(), names...)
	roots := x509.NewCertPool()
	roots.AddCert(i.Certificate())
	theirs, ours := net.Pipe()
	defer ours.Close()
	served := make(chan error, 1)
	go func() {
		c := tls.Server(theirs, &tls.Config{SessionTicketsDisabled: true, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.Leaf(hello.ServerName)
		}})
		served <- errors.Join(c.Handshake(), theirs.Close())
	}()
	if err := tls.Client(ours, &tls.Config{RootCAs: roots, ServerName: "a.example.com"}).Handshake(); err != nil {
		t.Error(err)
	}
	_ = ours.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
