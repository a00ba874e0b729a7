package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/docker/go-connections/tlsconfig"
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/client"
)

// defaultSocket is where sandboxd listens by default.
const defaultSocket = "/run/daycare-sandbox/sandboxd.sock"

// app is what all commands share: where the service is. A field is empty if its flag was not given.
type app struct {
	socket, url                          string
	tokenFile, caFile, certFile, keyFile string
}

// flags adds the flags of every command. What is not given is taken from the environment; a flag
// for one way to reach the service overrides the variable for the other way.
func (a *app) flags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the service's socket (default "+defaultSocket+")")
	flags.StringVar(&a.url, "url", "",
		"a service on TCP instead, such as https://sandbox.example.org:7480")
	flags.StringVar(&a.tokenFile, "token-file", "", "file with the token for --url")
	flags.StringVar(&a.caFile, "ca-file", "",
		"PEM file with the authorities to trust for --url, instead of the host's")
	flags.StringVar(&a.certFile, "cert-file", "",
		"PEM file with a certificate to present to --url; goes with --key-file")
	flags.StringVar(&a.keyFile, "key-file", "", "PEM file with the key of --cert-file")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		for c := cmd; c.HasParent(); c = c.Parent() {
			if slices.Contains([]string{"completion", "man", "help", cobra.ShellCompRequestCmd},
				c.Name()) {
				return nil // these do not call the service, or complete nothing that only the service knows
			}
		}
		c, err := a.open()
		if err == nil {
			c.Close()
		}
		return err
	}
}

// client returns a client for one command. Faults of the flags were reported before the command
// began. For completions they are not, so these get a client without a service.
func (a *app) client() *client.Client {
	c, err := a.open()
	if err != nil {
		return client.New("")
	}
	return c
}

func (a *app) String() string {
	if url := a.at(); url != "" {
		return url
	}
	return a.socketPath()
}

// at returns the URL of a service on TCP; empty for none.
func (a *app) at() string {
	if a.url == "" && a.socket == "" {
		return os.Getenv("SANDBOX_URL")
	}
	return a.url
}

func (a *app) socketPath() string {
	return cmp.Or(a.socket, os.Getenv("SANDBOX_SOCKET"), defaultSocket)
}

func (a *app) open() (*client.Client, error) {
	if a.socket != "" && a.url != "" {
		return nil, errors.New("--socket and --url are both given: name one of them")
	}
	url := a.at()
	if url == "" {
		if a.tokenFile != "" || a.caFile != "" || a.certFile != "" || a.keyFile != "" {
			return nil, errors.New(
				"--token-file, --ca-file, --cert-file and --key-file go with --url")
		}
		return client.Open(client.Config{Socket: a.socketPath()})
	}
	if a.url == "" && os.Getenv("SANDBOX_SOCKET") != "" {
		return nil, errors.New(
			"SANDBOX_URL and SANDBOX_SOCKET are both set: unset one of them, or give --url or --socket")
	}
	name := cmp.Or(a.tokenFile, os.Getenv("SANDBOX_TOKEN_FILE"))
	if name == "" {
		return nil, errors.New(
			"a service on TCP needs a token: name its file with --token-file or $SANDBOX_TOKEN_FILE")
	}
	token, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the token: %w", err)
	}
	trust, err := a.trust()
	if err != nil {
		return nil, err
	}
	return client.Open(client.Config{URL: url, Token: strings.TrimSpace(string(token)), TLS: trust})
}

// trust returns the TLS settings: which authorities to trust, and which certificate to present.
func (a *app) trust() (*tls.Config, error) {
	options := tlsconfig.Options{
		CAFile:   cmp.Or(a.caFile, os.Getenv("SANDBOX_CA_FILE")),
		CertFile: cmp.Or(a.certFile, os.Getenv("SANDBOX_CERT_FILE")),
		KeyFile:  cmp.Or(a.keyFile, os.Getenv("SANDBOX_KEY_FILE")),

		ExclusiveRootPools: true,
	}
	if (options.CertFile == "") != (options.KeyFile == "") {
		return nil, errors.New(
			"--cert-file and --key-file go together, but only one of them is given")
	}
	trust, err := tlsconfig.Client(options)
	if err != nil {
		return nil, fmt.Errorf("cannot use --ca-file, or --cert-file and --key-file: %w", err)
	}
	return trust, nil
}
