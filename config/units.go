package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. Its text is a whole number with a unit: Ki, Mi, Gi and Ti are powers of
// 1024, K, M, G and T powers of 1000, and no unit means bytes.
type Size int64

const (
	ki Size = 1 << 10
	mi Size = 1 << 20
	gi Size = 1 << 30
)

// units has no lower case: "1g" is 1024³ bytes to Docker and 1000³ to others.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
	{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"K", 1e3},
}

// UnmarshalText reads a size such as "16Gi" or "1048576".
func (s *Size) UnmarshalText(text []byte) error {
	number, bytes := string(text), int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, bytes = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && int64(n) > math.MaxInt64/bytes:
		return errors.New("is more bytes than anything has")
	case err != nil:
		return errors.New("is no size: want a whole number of bytes, or one with Ki, Mi, Gi, Ti, K, M, G or T, such as 16Gi")
	}
	*s = Size(int64(n) * bytes)
	return nil
}

// String returns the shortest text that UnmarshalText reads back as s.
func (s Size) String() string {
	shortest := strconv.FormatInt(int64(s), 10)
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			text := strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
			if len(text) < len(shortest) {
				shortest = text
			}
		}
	}
	return shortest
}

// Duration is a time.Duration whose text is Go's, such as "15m" or "1h30m".
type Duration time.Duration

// UnmarshalText reads a duration such as "15m".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("is no duration: want a number with ms, s, m or h, such as 15m")
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// Millis is a time in milliseconds. In settings it is a number, and its key ends with Ms.
type Millis int64

// Duration returns m as a time.Duration. It does not overflow for what Validate accepts.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Owners are a user and a group of the host, written uid:gid, or, where Last is not 0, the ids from UID to Last, each
// of a user and of a group, written first-last.
type Owners struct{ UID, GID, Last uint32 }

// UnmarshalText reads owners such as "1000:1000" or "200000-299999".
func (o *Owners) UnmarshalText(text []byte) error {
	if first, last, ok := strings.Cut(string(text), "-"); ok {
		from, fromErr := strconv.ParseUint(first, 10, 32)
		to, toErr := strconv.ParseUint(last, 10, 32)
		if fromErr != nil || toErr != nil || to == 0 {
			return errors.New("is no range of ids: want first-last, such as 200000-299999")
		}
		*o = Owners{UID: uint32(from), Last: uint32(to)}
		return nil
	}
	u, g, _ := strings.Cut(string(text), ":")
	uid, uidErr := strconv.ParseUint(u, 10, 32)
	gid, gidErr := strconv.ParseUint(g, 10, 32)
	if uidErr != nil || gidErr != nil {
		return errors.New("is no owner: want the numbers uid:gid, such as 1000:1000, or a range of ids such as 200000-299999")
	}
	*o = Owners{UID: uint32(uid), GID: uint32(gid)}
	return nil
}

func (o Owners) String() string {
	if o.Last != 0 {
		return fmt.Sprintf("%d-%d", o.UID, o.Last)
	}
	return fmt.Sprintf("%d:%d", o.UID, o.GID)
}

// PortRange is TCP ports from the first to the last, written first-last. The zero PortRange is none, written as
// an empty text.
type PortRange struct{ First, Last int }

// UnmarshalText reads a range such as "20000-20999".
func (r *PortRange) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = PortRange{}
		return nil
	}
	first, last, _ := strings.Cut(string(text), "-")
	from, fromErr := strconv.ParseUint(first, 10, 16)
	to, toErr := strconv.ParseUint(last, 10, 16)
	if fromErr != nil || toErr != nil {
		return errors.New("is no range of ports: want first-last, such as 20000-20999")
	}
	*r = PortRange{First: int(from), Last: int(to)}
	return nil
}

func (r PortRange) String() string {
	if r == (PortRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
