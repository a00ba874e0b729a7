package inet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	prefix := netip.MustParsePrefix
	for want, cfg := range map[string]Config{
		"":                           {},
		"the name":                   {Name: "../x"},
		"the name ":                  {Name: "sixteen-letters-"},
		"range 198.51.100.0/27":      {Public: prefix("198.51.100.0/27")},
		"range 198.51.100.1/24":      {Public: prefix("198.51.100.1/24")},
		"range 2001:db8::/24":        {Public: prefix("2001:db8::/24")},
		"range 8.8.8.0/24":           {Public: prefix("8.8.8.0/24")},
		"range 192.0.0.0/16":         {Public: prefix("192.0.0.0/16")}, // begins and ends otherwise
		"pair 9.9.9.8/30":            {Pair: prefix("9.9.9.8/30")},
		"pair 10.0.0.0/31":           {Pair: prefix("10.0.0.0/31")},
		"address 1.1.1.1 is":         {Extra: []netip.Addr{netip.MustParseAddr("1.1.1.1")}},
		"address 127.0.0.1 is":       {Extra: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		"address fe80::1 is":         {Extra: []netip.Addr{netip.MustParseAddr("fe80::1")}},
		"address ::ffff:10.0.0.1 is": {Extra: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}},
		"address 224.0.0.1 is":       {Extra: []netip.Addr{netip.MustParseAddr("224.0.0.1")}},
		"address 2600::1 is":         {Extra: []netip.Addr{netip.MustParseAddr("2600::1")}},
		"198.51.100.9 is there":      {Extra: []netip.Addr{netip.MustParseAddr("198.51.100.9")}},
		"10.77.0.5 is there":         {Extra: []netip.Addr{private, private}},
	} {
		err := cfg.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestParse(t *testing.T) {
	four := func(protocol, fragment byte, options string, payload string) string {
		return string([]byte{0x45 + byte(len(options)/4)}) + "\x00\x00\x00\x00\x00\x00" + string([]byte{fragment}) +
			"\x40" + string([]byte{protocol}) + "\x00\x00\x0a\x00\x00\x01\xc6\x33\x64\x07" + options + payload
	}
	sixth := func(next byte, payload string) string {
		return "\x60\x00\x00\x00\x00\x00" + string([]byte{next}) + "\x40" +
			string(netip.MustParseAddr("fd00::1").AsSlice()) + string(six.AsSlice()) + payload
	}
	const ports = "\x12\x34\x00\x16"
	const udp = ports + "\x00\x09\x00\x00!"
	for packet, want := range map[string]string{
		four(6, 0, "", ports):                 "tcp 10.0.0.1 198.51.100.7 22 ",
		four(6, 0, "\x01\x01\x01\x01", ports): "tcp 10.0.0.1 198.51.100.7 22 ",
		four(17, 0, "", udp):                  "udp 10.0.0.1 198.51.100.7 22 !",
		four(17, 1, "", udp):                  "udp 10.0.0.1 198.51.100.7 0 ",
		four(6, 0, "", "\x12"):                "tcp 10.0.0.1 198.51.100.7 0 ",
		four(1, 0, "", "\x08\x00\x00\x00"):    "icmp 10.0.0.1 198.51.100.7 0 ",
		four(47, 0, "", ports):                "47 10.0.0.1 198.51.100.7 0 ",
		four(6, 0, "", "")[:19]:               "no",
		"":                                    "no",
		"\x00\x01\x08\x00":                    "no",
		sixth(6, ports):                       "tcp fd00::1 2001:db8:77::5 22 ",
		sixth(58, "\x80"):                     "icmp6 fd00::1 2001:db8:77::5 0 ",
		sixth(0, "\x11\x00\x00\x00\x00\x00\x00\x00"+udp):                                 "udp fd00::1 2001:db8:77::5 22 !",
		sixth(0, "\x2b\x00\x00\x00\x00\x00\x00\x00\x11\x00\x00\x00\x00\x00\x00\x00"+udp): "udp fd00::1 2001:db8:77::5 22 !",
		sixth(44, "\x11\x00\x00\x01\x00\x00\x00\x00"+udp):                                "udp fd00::1 2001:db8:77::5 22 !",
		sixth(44, "\x11\x00\x00\x08\x00\x00\x00\x00"+udp):                                "udp fd00::1 2001:db8:77::5 0 ",
		sixth(0, "\x11\xff\x00\x00\x00\x00\x00\x00"+udp):                                 "udp fd00::1 2001:db8:77::5 0 ",
	} {
		got := "no"
		if f, payload, ok := parse([]byte(packet)); ok {
			got = fmt.Sprintf("%s %s %s %d %s", f.Proto, f.Src, f.Dst, f.Port, payload)
		}
		if got != want {
			t.Errorf("%x: %q, want %q", packet, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x45" + strings.Repeat("\x00", 30)))
	f.Add([]byte("\x60" + strings.Repeat("\x00", 60)))
	f.Fuzz(func(t *testing.T, packet []byte) {
		before := slices.Clone(packet)
		flow, _, ok := parse(packet)
		if ok && (!flow.Src.IsValid() || !flow.Dst.IsValid() || flow.Proto == "") {
			t.Errorf("%+v", flow)
		}
		if !slices.Equal(before, packet) {
			t.Error("parse has changed the packet")
		}
	})
}
