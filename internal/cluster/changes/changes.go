// Package changes is what becomes of the hosts and the seats of a cluster, as events.
package changes

import "github.com/rs/zerolog"

// Node is an event of what has become of a host. It is nobody's.
type Node struct {
	Name string
	// State is up, draining, lost (it may still run something), fencing (cluster.fenceCommand runs against it), away (nothing of it
	// runs) or, of this host, fenced: it has no lease any more.
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
		"fencing":  {zerolog.WarnLevel, "cluster.fenceCommand runs against a lost host before its users are taken over"},
		"away":     {zerolog.WarnLevel, "a host is away, and nothing of it runs"},
		"fenced":   {zerolog.ErrorLevel, "this host has no lease any more: all that it does for users ends"},
	}[n.State]
	log.WithLevel(said.level).Str("host", n.Name).Msg(said.text)
}

// Seat is an event of a host that holds a user now, who is whose event it is. From is the host that held the user before and
// is lost; else empty. The epochs are those of their seats.
type Seat struct {
	Host      string
	Epoch     int64
	From      string
	FromEpoch int64
	// Here says that Host is this one.
	Here bool
}

// Line implements events.Line: the host that takes a user over says so.
func (s Seat) Line(log *zerolog.Logger, user string) {
	if s.Here && s.From != "" {
		log.Warn().Str("user", user).Str("host", s.Host).Int64("epoch", s.Epoch).Str("from", s.From).Int64("fromEpoch", s.FromEpoch).Msg("a user of a lost host is taken over")
	}
}

// FenceCommand is an event of a run of cluster.fenceCommand by this host. Operators alone are told.
type FenceCommand struct {
	Host  string
	Epoch int64
	Err   error
}

// Line implements events.Line.
func (f FenceCommand) Line(log *zerolog.Logger, _ string) {
	level, text := zerolog.WarnLevel, "cluster.fenceCommand has succeeded: other hosts may take its users over"
	if f.Err != nil {
		level, text = zerolog.ErrorLevel, "a lost host is not fenced off yet, so its users wait"
	}
	log.WithLevel(level).Err(f.Err).Str("host", f.Host).Int64("epoch", f.Epoch).Msg(text)
}
