package access

import (
	"crypto/tls"
	"fmt"

	"github.com/docker/go-connections/tlsconfig"
)

// Encryption returns the TLS configuration for a certificate and key, both PEM files; nil, which
// means no TLS, if they are empty. With authorities, callers need a certificate of one of them.
// HTTP/2 is not offered, because it has no WebSockets here.
func Encryption(certificate, key, authorities string) (*tls.Config, error) {
	if certificate == "" {
		return nil, nil
	}
	options := tlsconfig.Options{CertFile: certificate, KeyFile: key, CAFile: authorities}
	if authorities != "" {
		// Only these authorities: the host's own would admit anybody who has any certificate.
		options.ClientAuth, options.ExclusiveRootPools = tls.RequireAndVerifyClientCert, true
	}
	made, err := tlsconfig.Server(options)
	if err != nil {
		return nil, fmt.Errorf("cannot use tcp.certFile and tcp.keyFile, or tcp.clientCaFile: %w",
			err)
	}
	made.NextProtos = []string{"http/1.1"}
	return made, nil
}
