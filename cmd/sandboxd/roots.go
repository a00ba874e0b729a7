package main

// The certificates by which resolvers with tls:// are known, for where the system has none: the image of
// the service holds nothing but programs.
import _ "golang.org/x/crypto/x509roots/fallback"
