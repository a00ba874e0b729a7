package guard

import (
	"sync"

	"golang.org/x/crypto/cryptobyte"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// hello takes a ClientHello out of the records that carry it, as the bytes arrive. Each byte is
// looked at once, however they are split: a client that sends one at a time costs no more.
type hello struct {
	// limit bounds the message; with its records' headers it may take twice as much.
	limit int
	// raw is everything that was read, and at is where its next record begins.
	raw []byte
	at  int
	// message is what the records carried so far.
	message []byte
	// room, if set, takes room for so many bytes. If it reports false, no more is read.
	room func(bytes int) bool
	// skipsOthers passes over alerts, change_cipher_spec and early data: a second hello may come
	// after them.
	skipsOthers bool
}

const (
	recordChangeCipher = 20
	recordAlert        = 21
	recordHandshake    = 22
	recordData         = 23
	recordHeader       = 5
	maxRecord          = 1 << 14
	// Encrypted records, of which only early data is seen here, may be somewhat larger.
	recordMostSealed = maxRecord + 256
)

func malformed(reason string) *refusal {
	return &refusal{verdict: decisions.Malformed, reason: reason}
}

// next looks at the records that are complete. It reports whether the hello is complete too; it is
// then in message, and raw[:at] are the records up to its end.
func (h *hello) next() (bool, *refusal) {
	for {
		rest := h.raw[h.at:]
		if len(rest) > 0 {
			if r := h.expects(rest); r != nil {
				return false, r
			}
		}
		if len(rest) < recordHeader {
			return false, h.tooLarge()
		}
		size := int(rest[3])<<8 | int(rest[4])
		skipped := rest[0] != recordHandshake
		if size == 0 || size > recordMostSealed || !skipped && size > maxRecord {
			return false, malformed(reasonBadHello)
		}
		if len(rest) < recordHeader+size {
			return false, h.tooLarge()
		}
		h.at += recordHeader + size
		if skipped {
			continue
		}
		fragment := rest[recordHeader : recordHeader+size]
		if h.message == nil {
			// A hello that is in one record is not copied. The capacity makes append copy it.
			h.message = fragment[:size:size]
		} else if h.message = h.appended(h.message, fragment); h.message == nil {
			return false, &refusal{verdict: decisions.Limited, reason: reasonHellos}
		}
		if done, r := h.complete(); done || r != nil {
			return done, r
		}
	}
}

// expects checks the beginning of a record as far as it has arrived.
func (h *hello) expects(rest []byte) *refusal {
	switch kind := rest[0]; {
	case kind == recordHandshake:
	case h.skipsOthers && h.message == nil &&
		(kind == recordChangeCipher || kind == recordAlert || kind == recordData):
	case len(h.raw) > 0 && h.at == 0:
		return malformed(reasonNotTLS)
	default:
		return malformed(reasonBadHello)
	}
	if len(rest) > 1 && rest[1] != 3 {
		return malformed(reasonNotTLS)
	}
	return nil
}

func (h *hello) complete() (bool, *refusal) {
	const clientHello, header = 1, 4
	m := h.message
	if m[0] != clientHello {
		return false, malformed(reasonBadHello)
	}
	if len(m) < header {
		return false, nil
	}
	size := header + (int(m[1])<<16 | int(m[2])<<8 | int(m[3]))
	switch {
	case size > h.limit:
		return false, malformed(reasonTooLarge)
	case len(m) > size:
		// Another message in the hello's last record would be sent on unseen.
		return false, malformed(reasonBadHello)
	}
	return len(m) == size, nil
}

func (h *hello) tooLarge() *refusal {
	if len(h.raw) >= 2*h.limit {
		return malformed(reasonTooLarge)
	}
	return nil
}

// appended returns to with more appended, or nil if there is no room for a larger slice.
func (h *hello) appended(to, more []byte) []byte {
	need := len(to) + len(more)
	if need <= cap(to) {
		return append(to, more...)
	}
	size := need
	if len(to) > 0 {
		size = max(need, 2*cap(to))
	}
	if h.room != nil && !h.room(size-cap(to)) {
		return nil
	}
	return append(append(make([]byte, 0, size), to...), more...)
}

// helloShare is how much of a hello is read at once.
const helloShare = 16 << 10

// add adds what has arrived. It reports whether the hello is complete.
func (h *hello) add(p []byte) (bool, *refusal) {
	if len(p) > 0 {
		raw := h.appended(h.raw, p)
		if raw == nil {
			return false, &refusal{verdict: decisions.Limited, reason: reasonHellos}
		}
		h.raw = raw
	}
	return h.next()
}

// serverName finds the one host name in a complete ClientHello message.
func serverName(message []byte) (string, *refusal) {
	var (
		bad                                    = malformed(reasonBadHello)
		in                                     = cryptobyte.String(message)
		body, session, suites, methods, extras cryptobyte.String
	)
	if !in.Skip(1) || !in.ReadUint24LengthPrefixed(&body) || !in.Empty() ||
		!body.Skip(2+32) || !body.ReadUint8LengthPrefixed(&session) || len(session) > 32 ||
		!body.ReadUint16LengthPrefixed(&suites) || len(suites) == 0 || len(suites)%2 != 0 ||
		!body.ReadUint8LengthPrefixed(&methods) || len(methods) == 0 {
		return "", bad
	}
	if body.Empty() {
		return "", &refusal{verdict: decisions.Denied, reason: reasonNoName}
	}
	if !body.ReadUint16LengthPrefixed(&extras) || !body.Empty() {
		return "", bad
	}
	var named cryptobyte.String
	seen := seenKinds.Get().(*kinds)
	defer func() { *seen = kinds{}; seenKinds.Put(seen) }()
	for !extras.Empty() {
		var kind uint16
		var value cryptobyte.String
		if !extras.ReadUint16(&kind) || !extras.ReadUint16LengthPrefixed(&value) || seen.has(kind) {
			return "", bad
		}
		seen.add(kind)
		if kind == 0 {
			named = value
		}
	}
	if !seen.has(0) {
		return "", &refusal{verdict: decisions.Denied, reason: reasonNoName}
	}
	return hostName(named)
}

// kinds is a set of extensions. A map would take a millisecond for as many as a hello has room for.
type kinds [1 << 16 / 64]uint64

// seenKinds are not on stacks, which would stay large.
var seenKinds = sync.Pool{New: func() any { return new(kinds) }}

func (k *kinds) add(kind uint16)      { k[kind/64] |= 1 << (kind % 64) }
func (k *kinds) has(kind uint16) bool { return k[kind/64]&(1<<(kind%64)) != 0 }

// hostName reads the server_name extension: a list of exactly one name, of type host_name.
func hostName(extension cryptobyte.String) (string, *refusal) {
	var list, name cryptobyte.String
	var kind uint8
	if !extension.ReadUint16LengthPrefixed(&list) || !extension.Empty() ||
		!list.ReadUint8(&kind) || kind != 0 || !list.ReadUint16LengthPrefixed(&name) ||
		!list.Empty() {
		return "", malformed(reasonBadHello)
	}
	return canonicalName(string(name))
}
