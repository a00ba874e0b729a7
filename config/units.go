package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-connections/nat"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// fromText sets a value that is written as a string.
func fromText[T any](raw []byte, to *T, parse func(string) (T, error)) error {
	text, err := strictjson.Text(raw)
	if err != nil {
		return err
	}
	value, err := parse(text)
	if err == nil {
		*to = value
	}
	return err
}

// Size is a number of bytes. Its text is a whole number with a unit: Ki, Mi, Gi and Ti are powers
// of 1024, K, M, G and T powers of 1000, and no unit means bytes.
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

// parseSize reads a size such as "16Gi" or "1048576".
func parseSize(text string) (Size, error) {
	number, bytes := text, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, bytes = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && int64(n) > math.MaxInt64/bytes:
		return 0, errors.New("is too many bytes")
	case err != nil:
		return 0, errors.New(
			"is no size: want a whole number of bytes, or one with Ki, Mi, Gi, Ti, K, M, G or T, such as 16Gi")
	}
	return Size(int64(n) * bytes), nil
}

// UnmarshalJSON reads a size from settings.json, where it is a string or a number.
func (s *Size) UnmarshalJSON(raw []byte) error {
	if jsontext.Value(raw).Kind() == '0' {
		raw = strconv.AppendQuote(nil, string(raw))
	}
	return fromText(raw, s, parseSize)
}

// Want says for strictjson what a value should be.
func (Size) Want() string { return "a size such as 16Gi" }

// String returns the shortest text that parseSize reads back as s.
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

// parseDuration reads a duration such as "15m".
func parseDuration(text string) (Duration, error) {
	v, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("is no duration: want a number with ms, s, m or h, such as 15m")
	}
	return Duration(v), nil
}

// UnmarshalJSON reads a duration from its string in settings.json.
func (d *Duration) UnmarshalJSON(raw []byte) error { return fromText(raw, d, parseDuration) }

// Want says for strictjson what a value should be.
func (Duration) Want() string { return "a duration such as 15m" }

func (d Duration) String() string { return time.Duration(d).String() }

// short is String without what is zero at its end: "15m" rather than "15m0s".
func (d Duration) short() string {
	text := d.String()
	if long, is := strings.CutSuffix(text, "m0s"); is {
		text = long + "m"
	}
	if long, is := strings.CutSuffix(text, "h0m"); is {
		text = long + "h"
	}
	return text
}

// Millis is a time in milliseconds. In settings it is a number, and its key ends with Ms.
type Millis int64

// Duration returns m as a time.Duration. It does not overflow for what Validate accepts.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Owners are a user and a group of the host, written uid:gid; or, if Last is not 0, the ids from
// UID to Last, each for a user and a group, written first-last.
type Owners struct{ UID, GID, Last uint32 }

// parseOwners reads owners such as "1000:1000" or "200000-299999".
func parseOwners(text string) (Owners, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		from, fromErr := strconv.ParseUint(first, 10, 32)
		to, toErr := strconv.ParseUint(last, 10, 32)
		if fromErr != nil || toErr != nil || to == 0 {
			return Owners{},
				errors.New("is no range of ids: want first-last, such as 200000-299999")
		}
		return Owners{UID: uint32(from), Last: uint32(to)}, nil
	}
	u, g, _ := strings.Cut(text, ":")
	uid, uidErr := strconv.ParseUint(u, 10, 32)
	gid, gidErr := strconv.ParseUint(g, 10, 32)
	if uidErr != nil || gidErr != nil {
		return Owners{},
			errors.New("is no owner: want the numbers uid:gid, such as 1000:1000, or a range of ids such as 200000-299999")
	}
	return Owners{UID: uint32(uid), GID: uint32(gid)}, nil
}

// UnmarshalJSON reads owners from their string in settings.json.
func (o *Owners) UnmarshalJSON(raw []byte) error { return fromText(raw, o, parseOwners) }

// Want says for strictjson what a value should be.
func (Owners) Want() string {
	return "an owner such as 1000:1000 or a range of them such as 200000-299999"
}

func (o Owners) String() string {
	if o.Last != 0 {
		return fmt.Sprintf("%d-%d", o.UID, o.Last)
	}
	return fmt.Sprintf("%d:%d", o.UID, o.GID)
}

// PortRange is a range of TCP ports, written first-last. The zero PortRange has no ports and is
// written as an empty text.
type PortRange struct{ First, Last int }

// parsePortRange reads a range such as "20000-20999".
func parsePortRange(text string) (PortRange, error) {
	if text == "" {
		return PortRange{}, nil
	}
	first, last, err := nat.ParsePortRange(text)
	if err != nil {
		return PortRange{}, errors.New("is no range of ports: want first-last, such as 20000-20999")
	}
	return PortRange{First: int(first), Last: int(last)}, nil
}

// UnmarshalJSON reads a range from its string in settings.json.
func (r *PortRange) UnmarshalJSON(raw []byte) error { return fromText(raw, r, parsePortRange) }

// Want says for strictjson what a value should be.
func (PortRange) Want() string { return "a range of ports such as 20000-20999" }

func (r PortRange) String() string {
	if r == (PortRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
