package forward

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files in an authority's folder; a host's files there have its name with .crt and .key.
const (
	AuthorityFile  = "ca.crt"
	authorityKey   = "ca.key"
	SealingKeyFile = "sealing.key"
)

// How long certificates are valid. Hosts' certificates must be issued again before they expire.
const (
	authorityYears = 10
	hostYears      = 2
)

// MakeAuthority makes a cluster's own certificate authority in a folder, and the key that secrets
// are sealed with. It does not overwrite files.
func MakeAuthority(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, authorityKey)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot make an authority: there is one in %s already", dir)
	}
	sealing := make([]byte, 32)
	_, _ = rand.Read(sealing) // it never fails
	if err := writeNew(filepath.Join(dir, SealingKeyFile), sealing, 0o600); err != nil {
		return err
	}
	form := form("daycare-sandbox cluster", authorityYears)
	form.IsCA, form.BasicConstraintsValid, form.KeyUsage = true, true,
		x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	return issue(form, nil, filepath.Join(dir, AuthorityFile), filepath.Join(dir, authorityKey))
}

// Issue makes a certificate for a host's name and address with the authority in a folder, and
// writes it to that folder.
func Issue(dir, host, address string) error {
	authority, err := tls.LoadX509KeyPair(filepath.Join(dir, AuthorityFile),
		filepath.Join(dir, authorityKey))
	if err != nil {
		return fmt.Errorf(
			"cannot use the authority in %s: %w (sandboxd cluster init makes one, once for a cluster)",
			dir, err)
	}
	certificate, key := filepath.Join(dir, host+".crt"), filepath.Join(dir, host+".key")
	for _, name := range []string{certificate, key} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf(
				"cannot make a certificate for host %q: %s exists already; to make a new one, remove %s and %s",
				host, name, certificate, key)
		}
	}
	form := form(host, hostYears)
	form.KeyUsage, form.ExtKeyUsage = x509.KeyUsageDigitalSignature,
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	form.DNSNames = []string{host}
	if ip := net.ParseIP(address); ip != nil {
		form.IPAddresses = []net.IP{ip}
	} else {
		form.DNSNames = append(form.DNSNames, address)
	}
	return issue(form, &authority, certificate, key)
}

func form(name string, years int) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // it never fails
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(years, 0, 0), // clocks differ
	}
}

// issue makes a new key and signs its certificate; without an authority, it is self-signed.
func issue(form *x509.Certificate, by *tls.Certificate, certificate, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	parent, signer := form, crypto.PrivateKey(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	signed, err := x509.CreateCertificate(rand.Reader, form, parent, key.Public(), signer)
	if err != nil {
		return err
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeNew(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}),
		0o600); err != nil {
		return err
	}
	return writeNew(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		0o644)
}

// writeNew writes a file that does not exist yet.
func writeNew(name string, text []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}
