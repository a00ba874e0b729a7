package guard

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// helloOf is what crypto/tls says first.
func helloOf(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	cfg.InsecureSkipVerify = true
	go func() { _ = tls.Client(client, cfg).Handshake() }()
	defer func() { _ = server.Close() }()
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(header[3])<<8|int(header[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

// records cuts a message into records of a size.
func records(message []byte, size int) []byte {
	var out []byte
	for len(message) > 0 {
		n := min(size, len(message))
		out = append(out, recordHandshake, 3, 1, byte(n>>8), byte(n))
		out = append(out, message[:n]...)
		message = message[n:]
	}
	return out
}

type extension struct {
	kind uint16
	data []byte
}

// message builds a ClientHello message by hand.
func message(extensions ...extension) []byte {
	var b cryptobyte.Builder
	b.AddUint8(1)
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint16(0x0303)
		b.AddBytes(make([]byte, 32))
		b.AddUint8(0)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddUint16(0x1301) })
		b.AddBytes([]byte{1, 0})
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, e := range extensions {
				b.AddUint16(e.kind)
				b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(e.data) })
			}
		})
	})
	return b.BytesOrPanic()
}

func named(names ...string) extension {
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, name := range names {
			b.AddUint8(0)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
		}
	})
	return extension{0, b.BytesOrPanic()}
}

// padded is a hello whose message is of a size.
func padded(size int) []byte {
	rest := size - len(message(named("allowed.example"), extension{21, nil}))
	return message(named("allowed.example"), extension{21, make([]byte, rest)})
}

// read adds what a reader has until that is enough.
func (h *hello) read(from io.Reader) (complete bool, refused *refusal) {
	p := make([]byte, helloShare)
	for !complete && refused == nil {
		n, err := from.Read(p)
		if complete, refused = h.add(p[:n]); err != nil && !complete && refused == nil {
			return false, malformed(reasonCutShort)
		}
	}
	return complete, refused
}

func parse(from io.Reader) (string, *refusal) {
	h := &hello{limit: 64 << 10}
	if _, r := h.read(from); r != nil {
		return "", r
	}
	return serverName(h.message)
}

func TestTheNameIsFoundInEveryHello(t *testing.T) {
	long := make([]string, 200)
	for i := range long {
		long[i] = strings.Repeat("p", 40)
	}
	for what, cfg := range map[string]*tls.Config{
		"1.0":         {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		"1.1":         {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"1.2":         {MaxVersion: tls.VersionTLS12},
		"1.3":         {MinVersion: tls.VersionTLS13},
		"default":     {},
		"many ALPN":   {NextProtos: long},
		"no new keys": {CurvePreferences: []tls.CurveID{tls.X25519}},
	} {
		cfg.ServerName = "Allowed.EXAMPLE"
		raw := helloOf(t, cfg)
		for how, from := range map[string]io.Reader{
			"whole":           bytes.NewReader(raw),
			"byte by byte":    iotest.OneByteReader(bytes.NewReader(raw)),
			"tiny records":    bytes.NewReader(records(raw[recordHeader:], 1)),
			"both":            iotest.OneByteReader(bytes.NewReader(records(raw[recordHeader:], 1))),
			"records of 1000": iotest.HalfReader(bytes.NewReader(records(raw[recordHeader:], 1000))),
		} {
			if name, r := parse(from); name != "allowed.example" {
				t.Errorf("%s, %s: %q, %v", what, how, name, r)
			}
		}
	}
}

func TestBadHellosAreRefused(t *testing.T) {
	good := message(named("allowed.example"))
	one := func(m []byte) []byte { return records(m, maxRecord) }
	withByte := func(raw []byte, at int, b byte) []byte {
		raw = bytes.Clone(raw)
		raw[at] = b
		return raw
	}
	for what, c := range map[string]struct {
		raw    []byte
		reason string
	}{
		"no extensions":             {one(message()), reasonNoName},
		"no name":                   {one(message(extension{16, []byte{0, 0}})), reasonNoName},
		"an empty list":             {one(message(extension{0, []byte{0, 0}})), reasonBadHello},
		"an empty extension":        {one(message(extension{0, nil})), reasonBadHello},
		"an empty name":             {one(message(named(""))), reasonBadName},
		"two names":                 {one(message(named("allowed.example", "denied.example"))), reasonBadHello},
		"the extension twice":       {one(message(named("allowed.example"), named("denied.example"))), reasonBadHello},
		"another extension twice":   {one(message(named("allowed.example"), extension{16, nil}, extension{16, nil})), reasonBadHello},
		"a name of another type":    {one(message(extension{0, append([]byte{0, 4, 1, 0, 1}, 'a')})), reasonBadHello},
		"bytes behind the name":     {one(message(extension{0, append(named("allowed.example").data, 0)})), reasonBadHello},
		"an IPv4 address":           {one(message(named("192.0.2.1"))), reasonAddress},
		"an IPv6 address":           {one(message(named("2001:db8::1"))), reasonAddress},
		"a short IPv4 address":      {one(message(named("127.1"))), reasonAddress},
		"hexadecimal":               {one(message(named("0x7f000001"))), reasonAddress},
		"not ASCII":                 {one(message(named("ällowed.example"))), reasonBadName},
		"a NUL":                     {one(message(named("allowed.example\x00.evil.example"))), reasonBadName},
		"a port":                    {one(message(named("allowed.example:443"))), reasonBadName},
		"two dots":                  {one(message(named("allowed.example.."))), reasonBadName},
		"a long label":              {one(message(named(strings.Repeat("a", 64) + ".example"))), reasonBadName},
		"a long name":               {one(message(named(strings.Repeat("a.", 127) + "example"))), reasonBadName},
		"a message behind it":       {one(append(bytes.Clone(good), good...)), reasonBadHello},
		"bytes in the body":         {one(withByte(append(bytes.Clone(good), 0), 3, good[3]+1)), reasonBadHello},
		"another message":           {one(withByte(good, 0, 2)), reasonBadHello},
		"an empty record":           {append([]byte{22, 3, 1, 0, 0}, one(good)...), reasonBadHello},
		"a record in between":       {append(append(records(good[:10], 10), 20, 3, 1, 0, 1, 1), one(good[10:])...), reasonBadHello},
		"change_cipher_spec first":  {append([]byte{20, 3, 1, 0, 1, 1}, one(good)...), reasonNotTLS},
		"a record of 16 KiB and 1":  {[]byte{22, 3, 1, 0x40, 1}, reasonBadHello},
		"one more than 64 KiB":      {one([]byte{1, 0, 0xff, 0xfd}), reasonTooLarge},
		"16 MiB announced":          {one([]byte{1, 255, 255, 255}), reasonTooLarge},
		"64 KiB in tiny records":    {records(padded(64<<10), 1), reasonTooLarge},
		"SSLv2":                     {[]byte{0x80, 0x2e, 1, 0, 2, 0, 0x15}, reasonNotTLS},
		"HTTP":                      {[]byte("GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"), reasonNotTLS},
		"SSH":                       {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), reasonNotTLS},
		"another version of record": {withByte(one(good), 1, 2), reasonNotTLS},
		"nothing":                   {nil, reasonCutShort},
		"a hello cut short":         {one(good)[:20], reasonCutShort},
	} {
		if name, r := parse(bytes.NewReader(c.raw)); r == nil || r.reason != c.reason || name != "" {
			t.Errorf("%s: %q, %v, want %s", what, name, r, c.reason)
		}
	}
	if name, r := parse(bytes.NewReader(one(padded(64 << 10)))); name != "allowed.example" {
		t.Errorf("64 KiB: %q, %v", name, r)
	}
	if _, r := parse(iotest.ErrReader(io.ErrClosedPipe)); r.reason != reasonCutShort {
		t.Errorf("a connection that fails: %v", r)
	}
}

func TestCanonicalNames(t *testing.T) {
	for in, want := range map[string]string{
		"allowed.example": "allowed.example", "ALLOWED.Example": "allowed.example", "allowed.example.": "allowed.example",
		"xn--bcher-kva.example": "xn--bcher-kva.example", "_dmarc.a-b.example": "_dmarc.a-b.example", "localhost": "localhost",
		"1.example": "1.example", ".": "", "a..b": "", ".a": "", "*.example": "", "a b": "", "a/b": "", "a%b": "", "[::1]": "",
	} {
		if name, r := canonicalName(in); name != want || (r == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", in, name, r, want)
		}
	}
}

func TestKindsAreKeptApart(t *testing.T) {
	var seen kinds
	for kind := range 1 << 16 {
		if seen.has(uint16(kind)) {
			t.Fatalf("%d is there before it came", kind)
		}
		seen.add(uint16(kind))
		if !seen.has(uint16(kind)) {
			t.Fatalf("%d is not there", kind)
		}
	}
}

// TestTheSecondHelloMayComeLater covers what a client sends after a HelloRetryRequest.
func TestTheSecondHelloMayComeLater(t *testing.T) {
	raw := append([]byte{20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 2, 7, 7}, records(message(named("allowed.example")), 50)...)
	h := &hello{limit: 64 << 10, skipsOthers: true}
	if done, r := h.read(iotest.OneByteReader(bytes.NewReader(raw))); !done || r != nil || h.at != len(raw) {
		t.Fatalf("%v, %d bytes of %d", r, h.at, len(raw))
	}
	if name, r := serverName(h.message); name != "allowed.example" {
		t.Fatalf("%q, %v", name, r)
	}
}

// FuzzServerName holds the parser against crypto/tls: where both find a name, it is the same.
func FuzzServerName(f *testing.F) {
	for _, m := range [][]byte{
		message(named("allowed.example")), message(), message(named("allowed.example", "denied.example")),
		message(named("Allowed.Example.")), helloOf(f, &tls.Config{ServerName: "allowed.example"})[recordHeader:], padded(5000),
	} {
		f.Add(records(m, maxRecord))
		f.Add(records(m, 7))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		name, r := parse(bytes.NewReader(raw))
		if (r == nil) != (name != "") {
			t.Fatalf("%q with %v", name, r)
		}
		if again, _ := parse(iotest.OneByteReader(bytes.NewReader(raw))); again != name {
			t.Fatalf("%q in one piece, %q byte by byte", name, again)
		}
		if r != nil {
			return
		}
		if theirs, ok := oracle(raw); ok && !strings.EqualFold(theirs, name) && theirs != "" {
			t.Fatalf("we read %q, crypto/tls %q", name, theirs)
		}
	})
}

// oracle is the name that a crypto/tls server sees.
func oracle(raw []byte) (string, bool) {
	var name string
	var seen bool
	server := tls.Server(script{bytes.NewReader(raw)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = h.ServerName, true
			return nil, errors.New("enough")
		},
	})
	_ = server.Handshake()
	return name, seen
}

// script is a connection that says what it has to say and hears nothing.
type script struct{ io.Reader }

func (script) Write(p []byte) (int, error)      { return len(p), nil }
func (script) Close() error                     { return nil }
func (script) LocalAddr() net.Addr              { return nil }
func (script) RemoteAddr() net.Addr             { return nil }
func (script) SetDeadline(time.Time) error      { return nil }
func (script) SetReadDeadline(time.Time) error  { return nil }
func (script) SetWriteDeadline(time.Time) error { return nil }
