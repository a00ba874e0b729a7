package main

import (
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// tellReady notifies systemd that the service listens, if systemd started it.
func tellReady(log zerolog.Logger) {
	if _, err := systemd.SdNotify(true, systemd.SdNotifyReady); err != nil {
		log.Warn().Err(err).Msg("cannot tell systemd that the service is ready")
	}
}
