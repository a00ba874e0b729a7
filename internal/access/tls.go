package access

import (
	"crypto/tls"
	"fmt"

	"github.com/docker/go-connections/tlsconfig"
)

// Encryption is how TLS is spoken with the certificate and key of these files, both PEM; nil if they are
// empty, which is not at all. With authorities, callers need a certificate of one of them. HTTP/2, which has
// no WebSockets here, is not offered.
func Encryption(certificate, key, authorities string) (*tls.Config, error) {
	if certificate == "" {
		return nil, nil
	}
	options := tlsconfig.Options{CertFile: certificate, KeyFile: key, CAFile: authorities}
	if authorities != "" {
		// Of these authorities alone: the host's own would let in whoever has any certificate.
		options.ClientAuth, options.ExclusiveRootPools = tls.RequireAndVerifyClientCert, true
	}
	made, err := tlsconfig.Server(options)
	if err != nil {
		return nil, fmt.Errorf("cannot use tcp.certFile and tcp.keyFile, or tcp.clientCaFile: %w", err)
	}
	made.NextProtos = []string{"http/1.1"}
	return made, nil
}
