// Package changes has the events about the hosts and the seats of a cluster.
package changes

import "github.com/rs/zerolog"

// Node is the event of a host whose state has changed. It belongs to no user.
type Node struct {
	Name string
	// State is up, draining, lost (it may still run something), fencing (cluster.fenceCommand runs
	// against it), away (nothing of it runs) or, of this host, fenced: it has no lease any more.
	State string
}

// Line implements events.Line.
func (n Node) Line(log *zerolog.Logger, _ string) {
	said := map[string]struct {
		level zerolog.Level
		text  string
	}{
		"up":       {zerolog.InfoLevel, "a host takes users"},
		"draining": {zerolog.InfoLevel, "a host is draining: it takes no new users"},
		"lost":     {zerolog.WarnLevel, "a host is lost, and may still run something"},
		"fencing": {zerolog.WarnLevel,
			"cluster.fenceCommand runs against a lost host before its users are taken over"},
		"away": {zerolog.WarnLevel, "a host is away; it runs nothing"},
		"fenced": {zerolog.ErrorLevel,
			"this host has no lease any more: all that it does for users ends"},
	}[n.State]
	log.WithLevel(said.level).Str("host", n.Name).Msg(said.text)
}

// Seat is the event of a host that holds a user now; it belongs to that user. From is the host that
// held the user before and is lost, or empty. The epochs are those of the two hosts' seats.
type Seat struct {
	Host      string
	Epoch     int64
	From      string
	FromEpoch int64
	// Here reports whether Host is this host.
	Here bool
}

// Line implements events.Line: only the host that takes a user over logs it.
func (s Seat) Line(log *zerolog.Logger, user string) {
	if s.Here && s.From != "" {
		log.Warn().Str("user", user).
			Str("host", s.Host).Int64("epoch", s.Epoch).Str("from", s.From).
			Int64("fromEpoch", s.FromEpoch).Msg("a user of a lost host is taken over")
	}
}

// FenceCommand is the event of a run of cluster.fenceCommand by this host. Only operators see it.
type FenceCommand struct {
	Host  string
	Epoch int64
	Err   error
}

// Line implements events.Line.
func (f FenceCommand) Line(log *zerolog.Logger, _ string) {
	level, text := zerolog.WarnLevel,
		"cluster.fenceCommand has succeeded: other hosts may take its users over"
	if f.Err != nil {
		level, text = zerolog.ErrorLevel, "a lost host is not fenced off yet, so its users wait"
	}
	log.WithLevel(level).Err(f.Err).Str("host", f.Host).Int64("epoch", f.Epoch).Msg(text)
}
