package dnsfilter

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

const (
	headerSize = 12
	maxName    = 253  // of a name as text, without a trailing dot
	minPayload = 512  // what every UDP client takes
	maxPayload = 1232 // what passes every network in one piece; more goes by TCP
	optSize    = 11
)

// Bits of the second word of a header.
const (
	bitResponse  = 1 << 15
	maskOpcode   = 0xf << 11
	bitTruncated = 1 << 9
	bitDesired   = 1 << 8 // recursion
	bitAvailable = 1 << 7 // recursion
	bitChecking  = 1 << 4 // disabled
)

var (
	errDrop    = errors.New("not a query")
	errForm    = errors.New("malformed query")
	errOpcode  = errors.New("opcode is not QUERY")
	errVersion = errors.New("unknown version of EDNS")
)

// question is what a packet asks. It is parsed without a library and without allocations: this is
// the path that a container can load most, and a query is one name and eight fields.
type question struct {
	id     uint16
	flags  uint16
	name   []byte // the name, type and class as they came
	class  uint16
	qtype  uint16
	host   bool // the name is made of letters, digits, '-' and '_' alone
	edns   bool
	do     bool
	last   bool                      // a stream ends with its answer
	limit  int                       // the largest answer that may be sent
	keyLen int                       // how much of key is in use
	key    [keyPrefix + maxName]byte // of the cache
}

// keyPrefix is how many bytes of a cache key precede the name: the type.
const keyPrefix = 2

// text returns the name in lower case and without a trailing dot. The bytes are the question's.
func (q *question) text() []byte { return q.key[keyPrefix:q.keyLen] }

// setKey completes the key with what does not come from the name.
func (q *question) setKey() []byte {
	binary.BigEndian.PutUint16(q.key[:], q.qtype)
	return q.key[:q.keyLen]
}

// parse reads a packet. On errDrop nothing may be answered; on another error the header is known.
// The question keeps parts of the packet.
func (q *question) parse(packet []byte) error {
	if len(packet) < headerSize {
		return errDrop
	}
	q.id = binary.BigEndian.Uint16(packet)
	q.flags = binary.BigEndian.Uint16(packet[2:])
	q.name, q.edns, q.do, q.limit = nil, false, false, minPayload
	if q.flags&bitResponse != 0 {
		return errDrop
	}
	if q.flags&maskOpcode != 0 {
		return errOpcode
	}
	// One question, no answer, no authority, and at most the one record that EDNS is made of.
	counts := binary.BigEndian.Uint64(packet[4:])
	if counts>>16 != 1<<32 || counts&0xffff > 1 {
		return errForm
	}
	rest, ok := q.parseName(packet[headerSize:])
	if !ok || len(rest) < 4 {
		return errForm
	}
	q.qtype = binary.BigEndian.Uint16(rest)
	q.class = binary.BigEndian.Uint16(rest[2:])
	q.name = packet[headerSize : len(packet)-len(rest)+4]
	if counts&0xffff == 1 {
		return q.parseOPT(rest[4:])
	}
	return nil
}

// parseName reads a name without compression, for which a question has no use, into the key.
func (q *question) parseName(b []byte) (rest []byte, ok bool) {
	q.host = true
	n := keyPrefix
	for {
		if len(b) == 0 {
			return nil, false
		}
		length := int(b[0])
		if length == 0 {
			break
		}
		if length > 63 || len(b) <= length {
			return nil, false
		}
		if n > keyPrefix {
			if n == len(q.key) {
				return nil, false
			}
			q.key[n] = '.'
			n++
		}
		if n+length > len(q.key) {
			return nil, false
		}
		for _, c := range b[1 : 1+length] {
			lower := hostBytes[c]
			q.host = q.host && lower != 0
			q.key[n] = lower
			n++
		}
		b = b[1+length:]
	}
	q.keyLen = n
	return b[1:], true
}

// hostBytes maps the bytes of host names to lower case and others to 0. A dot inside a label is one
// of the others: as text it would look like two labels, and be taken for an allowed name.
var hostBytes = func() (table [256]byte) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789-_") {
		table[c] = c
		if 'a' <= c && c <= 'z' {
			table[c-'a'+'A'] = c
		}
	}
	return table
}()

// parseOPT reads the pseudo-record of EDNS. Its options are not looked at.
func (q *question) parseOPT(b []byte) error {
	if len(b) < optSize || b[0] != 0 || binary.BigEndian.Uint16(b[1:]) != dns.TypeOPT {
		return errForm
	}
	if int(binary.BigEndian.Uint16(b[9:])) > len(b)-optSize {
		return errForm
	}
	q.edns = true
	q.limit = min(max(int(binary.BigEndian.Uint16(b[3:])), minPayload), maxPayload)
	q.do = b[7]&0x80 != 0
	if b[6] != 0 {
		return errVersion
	}
	return nil
}
