package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// Access says who may use the service's socket, beside its mode.
type Access struct {
	// Peers are the uids of the processes that may call, each once. Default: root's and the
	// service's own; an empty list, which would let nobody in, is refused. If there are other uids,
	// the socket's mode is 0666 instead of 0600, and that of its folder, if the service makes it,
	// 0711 instead of 0700: the kernel tells the service who connects.
	Peers []int `json:"peers" env:"PEERS" reload:"restart"`
}

// PeerUIDs returns Peers, or its default for a service that runs as uid.
func (a Access) PeerUIDs(uid int) []uint32 {
	if a.Peers == nil {
		return []uint32{0, uint32(uid)}
	}
	uids := make([]uint32, len(a.Peers))
	for i, peer := range a.Peers {
		uids[i] = uint32(peer)
	}
	return uids
}

// TCP is where the service listens beside its socket, for callers with a token. All fields but
// Listen are for E2B, too. All paths are absolute and clean, and not in UsersDir.
type TCP struct {
	// Listen is an address and a port, such as 127.0.0.1:7480, or a port on all addresses, such as
	// :7480. Default "": the service does not listen on TCP.
	Listen string `json:"listen" env:"LISTEN" reload:"restart"`

	// TokensFile holds the tokens, each with a name and, if it is only for some users, with these
	// users. Only its owner may have access to it. Must be set if Listen or E2B.Listen is. On
	// SIGHUP the file of the same name is read again.
	TokensFile string `json:"tokensFile" env:"TOKENS_FILE" reload:"restart"`

	// CertFile and KeyFile, both PEM, are the service's certificate with its chain and its key.
	// Default "": no TLS, with a warning unless Listen is loopback.
	CertFile string `json:"certFile" env:"CERT_FILE" reload:"restart"`
	KeyFile  string `json:"keyFile" env:"KEY_FILE" reload:"restart"`

	// ClientCAFile, PEM, has authorities, one of which must have signed the caller's certificate.
	// The caller needs a token as well. Default "": callers need no certificate.
	ClientCAFile string `json:"clientCaFile" env:"CLIENT_CA_FILE" reload:"restart"`

	// AllowedHosts are names and addresses, without a port, by which callers may address the
	// service. The host in Listen, localhost and loopback addresses are always allowed; if Listen
	// is for all addresses, every address is. Default none.
	AllowedHosts []string `json:"allowedHosts" env:"ALLOWED_HOSTS" reload:"restart"`

	// AllowedOrigins are web pages from which a browser may call, such as
	// https://console.example.org. Default none.
	AllowedOrigins []string `json:"allowedOrigins" env:"ALLOWED_ORIGINS" reload:"restart"`

	// Console serves the console at /console, where a browser signs in with a token. Default false.
	Console bool `json:"console" env:"CONSOLE" reload:"restart"`
}

func (a Access) check(f *faults) {
	if a.Peers != nil && len(a.Peers) == 0 {
		f.Add("access.peers",
			"[] lets nobody call: name the uids, or leave the key out for root and the service itself")
	}
	for i, uid := range a.Peers {
		key := fmt.Sprintf("access.peers[%d]", i)
		f.between(key, int64(uid), 0, math.MaxUint32-1)
		if slices.Contains(a.Peers[:i], uid) {
			f.Add(key, "%d is given more than once", uid)
		}
	}
}

// check finds faults. shared says whether E2B, which uses these settings as well, listens.
func (t TCP) check(f *faults, shared bool) {
	if t.Listen == "" && !shared {
		t.checkUnused(f)
		return
	}
	if err := checkListen(t.Listen); t.Listen != "" && err != nil {
		f.Add("tcp.listen", "%s %s", strictjson.Quote(t.Listen), err)
	}
	if t.TokensFile == "" {
		f.Add("tcp.tokensFile", "is not set, but a caller over TCP needs a token")
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		f.Add("tcp.certFile", "and tcp.keyFile go together, but only one of them is set")
	}
	if t.ClientCAFile != "" && t.CertFile == "" {
		f.Add("tcp.clientCaFile",
			"is set without tcp.certFile: certificates of callers go with TLS")
	}
	if t.Console && t.Listen == "" {
		f.Add("tcp.console",
			"is set, but tcp.listen is not: set it too, to an address such as 127.0.0.1:7480")
	}
	f.each("tcp.allowedHosts", t.AllowedHosts, func(host string) error {
		if _, err := netip.ParseAddr(host); err == nil || isHost(host) {
			return nil
		}
		return errors.New(
			"is neither a host name nor an address; write it without a port and without brackets")
	})
	f.each("tcp.allowedOrigins", t.AllowedOrigins, checkOrigin)
}

// checkUnused finds settings that have no effect: whoever wrote them thinks that the service
// listens.
func (t TCP) checkUnused(f *faults) {
	for _, s := range fields(reflect.ValueOf(&t).Elem(), "tcp", "") {
		if isEmpty := s.value.Kind() == reflect.Slice && s.value.Len() == 0; !isEmpty &&
			!s.value.IsZero() {
			f.Add(s.key,
				"is set, but neither tcp.listen nor e2b.listen is: set one of them too, to an address such as 127.0.0.1:7480")
		}
	}
}

func checkListen(listen string) error {
	if !strings.Contains(listen, ":") {
		return errors.New("has no port: want one such as 127.0.0.1:7480")
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || net.JoinHostPort(host, port) != listen { // brackets are for IPv6 alone
		return errListen
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errPort
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		return errListen
	}
	return nil
}

var errListen = errors.New(
	"is no address to listen on: want one such as 127.0.0.1:7480, [::1]:7480, localhost:7480 or :7480")

func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") ||
		u.Scheme+"://"+u.Host != origin || origin != strings.ToLower(origin) {
		return errors.New(
			"is no origin as browsers send it: want one such as https://console.example.org, in lower case and with nothing after the host and port")
	}
	return nil
}
