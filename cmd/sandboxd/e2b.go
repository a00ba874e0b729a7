package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/datadir"
	"github.com/daycare-run/sandbox/internal/e2b"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// openE2B listens for E2B's clients as configured, or returns nil. sent serves requests that other
// hosts forward from theirs.
func (d *daemon) openE2B(ctx context.Context, cfg config.Config,
	running *callCounter) (_ []endpoint, sent http.Handler, _ error) {
	if cfg.E2B.Listen == "" {
		return nil, http.HandlerFunc(noE2B), nil
	}
	secret, hosts, err := d.e2bHosts(cfg)
	if err != nil {
		return nil, nil, err
	}
	listener, _, err := listenTCP("e2b.listen", cfg.E2B.Listen, cfg.TCP, d.log)
	if err != nil {
		return nil, nil, err
	}
	surface := e2b.New(e2b.Config{
		Sandboxes: d.persistent, Cluster: hosts, Service: d.service,
		Callers: tcpCallers(cfg.TCP, cfg.E2B.Listen, d.tokens), Secret: secret,
		Blocked:   cfg.E2B.DefaultNetwork == "blocked",
		Templates: d.templates, MaxRequest: cfg.Exec.MaxRequestBytes,
		Domain: cfg.E2B.Domain, TLS: cfg.TCP.CertFile != "", Life: ctx, Log: d.log,
	})
	if hosts != nil {
		sent = running.counting(surface.Sent)
	}
	server := newServer(running.counting(surface), d.log)
	return []endpoint{{api.Prepare(server, listener, d.connections, nil), server}}, sent, nil
}

// noE2B answers forwarded requests where this host has no e2b.listen.
func noE2B(w http.ResponseWriter, _ *http.Request) {
	http.Error(w,
		`{"code":503,"message":"the host that holds the sandbox has no e2b.listen: set it on all hosts"}`,
		http.StatusServiceUnavailable)
}

// e2bHosts returns the secret for the sandboxes' tokens, and the E2B surface's view of the other
// hosts, nil on a single host.
func (d *daemon) e2bHosts(cfg config.Config) (secret []byte, hosts *e2b.Cluster, err error) {
	if d.membership == nil {
		// It has to outlive the service, because clients keep their tokens. Replacing a damaged key
		// would lock all of them out.
		if secret, err = datadir.Secret(filepath.Join(cfg.DataDir, "e2b.key"), false); err != nil {
			err = fmt.Errorf(
				"cannot keep the key for tokens of E2B's sandboxes, all of which get other tokens with another key: %w",
				err)
		}
		return secret, nil, err
	}
	if secret, err = d.membership.Derive("tokens of E2B's sandboxes"); err != nil {
		return nil, nil, err
	}
	router := d.member.Router()
	return secret, &e2b.Cluster{Entry: forward.Entry{Router: router, Wire: forward.E2B},
		Sent: forward.Inbound{Router: router}}, nil
}

func templates(cfg config.E2B) map[string]persistent.Template {
	list := map[string]persistent.Template{}
	for name, t := range cfg.Templates {
		list[name] = persistent.Template{Name: name, Image: t.Image, CPUs: t.CPUs,
			Memory: int64(t.Memory), Env: t.Env,
			Start: t.Start, Ready: t.Ready, ReadyTimeout: t.ReadyTimeout.Duration()}
	}
	return list
}
