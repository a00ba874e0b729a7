// Package mux configures yamux, with which service and agent share one connection among commands,
// and has it write less often.
package mux

import (
	"io"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Config is how both ends configure yamux. The library is libp2p's fork: it sends a frame with one
// write where hashicorp's takes two (each is a system call in gVisor and a wake-up of every relay
// on the way), bounds incoming streams, and is maintained.
//
// The windows bound what a command can make the service hold: at most MaxStreamWindowSize for
// each stream that the service opened, and it accepts none that a container opens.
func Config(incoming uint32) *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.MaxIncomingStreams = incoming
	cfg.AcceptBacklog = 1024
	cfg.MaxStreamWindowSize = 1 << 20
	cfg.MaxMessageSize = wire.HeaderSize + wire.MaxData
	cfg.ReadBufSize = 32 << 10
	cfg.ConnectionWriteTimeout = 20 * time.Second
	cfg.EnableKeepAlive = false
	cfg.MeasureRTTInterval = 10 * 365 * 24 * time.Hour // once, at the start: a frozen agent does not answer
	cfg.LogOutput = io.Discard
	return cfg
}
