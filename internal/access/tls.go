package access

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Encryption is how TLS is spoken with the certificate and key of these files, both PEM; nil if they are
// empty, which is not at all. With authorities, callers need a certificate of one of them. HTTP/2, which has
// no WebSockets here, is not offered.
func Encryption(certificate, key, authorities string) (*tls.Config, error) {
	if certificate == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("cannot use tcp.certFile and tcp.keyFile: %w", err)
	}
	made := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if authorities == "" {
		return made, nil
	}
	text, err := os.ReadFile(authorities)
	if err != nil {
		return nil, fmt.Errorf("cannot use tcp.clientCaFile: %w", err)
	}
	made.ClientCAs = x509.NewCertPool()
	if !made.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("cannot use tcp.clientCaFile: there is no certificate in %s", authorities)
	}
	made.ClientAuth = tls.RequireAndVerifyClientCert
	return made, nil
}
