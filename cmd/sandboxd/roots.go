package main

// The root certificates for tls:// resolvers, for systems that have none: the image of the service
// holds only programs.
import _ "golang.org/x/crypto/x509roots/fallback"
