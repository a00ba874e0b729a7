package egress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// What clouds answer, each in its own way, and what others answer to the same questions.
func TestPublicAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
		fails  bool
	}{
		"Amazon": {func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
				fmt.Fprint(w, "secret")
			case r.URL.Path == "/latest/meta-data/public-ipv4" && r.Header.Get("X-aws-ec2-metadata-token") == "secret":
				fmt.Fprint(w, "203.0.113.7")
			default:
				w.WriteHeader(http.StatusUnauthorized)
			}
		}, "[203.0.113.7]", false},
		"Google": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			fmt.Fprintln(w, "203.0.113.8")
		}, "[203.0.113.8]", false},
		"Azure": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata") != "true" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, "203.0.113.9")
		}, "[203.0.113.9]", false},
		"one that is not ready": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "[]", true},
		"one that is not ready to give a token": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			w.WriteHeader(http.StatusUnauthorized)
		}, "[]", true},
		"one that hangs up on a question": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hetzner/v1/metadata/public-ipv4" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, "203.0.113.10")
		}, "[203.0.113.10]", true},
		"another":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello</html>") }, "[]", false},
		"a bouncer": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "[]", false},
	} {
		server := httptest.NewServer(http.HandlerFunc(c.answer))
		got, err := PublicAddresses(t.Context(), server.URL)
		if fmt.Sprint(got) != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		server.Close()
	}
	if got, err := PublicAddresses(t.Context(), "http://127.0.0.1:1"); got != nil || err == nil {
		t.Errorf("nobody: %v, %v", got, err)
	}
}

// A cloud that answers late is asked again, and what it names then is the host's own; nobody is asked for ever.
func TestMetadataIsAskedAgain(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.7")
	for name, c := range map[string]struct {
		readyAt  int64 // the attempt that is answered
		attempts int64
		want     string
	}{
		"at once":       {1, 1, "[203.0.113.7]"},
		"at the second": {2, 2, "[203.0.113.7]"},
		"at the last":   {4, 4, "[203.0.113.7]"},
		"never":         {9, 4, "[]"},
	} {
		var attempts atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				attempts.Add(1)
			}
			if attempts.Load() < c.readyAt {
				w.WriteHeader(http.StatusServiceUnavailable)
			} else if r.URL.Path == "/latest/meta-data/public-ipv4" {
				fmt.Fprint(w, addr)
			} else {
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		o := newOwnAddresses(t.Context(), nil, metadata{server: server.URL, waits: make([]time.Duration, 3)}, zerolog.Nop())
		o.finder.Wait()
		if addrs, _ := o.all(); fmt.Sprint(addrs) != c.want || attempts.Load() != c.attempts || o.has(addr) != (c.want != "[]") {
			t.Errorf("%s: %v after %d attempts", name, addrs, attempts.Load())
		}
		server.Close()
	}
}

// excludingTable tells what is excluded, and refuses the first time.
type excludingTable struct {
	none
	refused  bool
	excluded chan []netip.Prefix
}

func (x *excludingTable) Exclude(prefixes []netip.Prefix) error {
	if !x.refused {
		x.refused = true
		return errors.New("the kernel does not want to")
	}
	x.excluded <- prefixes
	return nil
}

// Rules of open containers follow what becomes known of the host.
func TestOwnAddressesAreExcludedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := newOwnAddresses(t.Context(), []netip.Addr{netip.MustParseAddr("203.0.113.7")}, metadata{}, zerolog.Nop())
		table := &excludingTable{excluded: make(chan []netip.Prefix)}
		s := &stack{owner: &Egress{cfg: Config{Log: zerolog.Nop()}, own: own}, table: table}
		life, end := context.WithCancel(t.Context())
		s.work.Go(func() { s.excludeOwn(life) })
		if got := fmt.Sprint(<-table.excluded); got != "[203.0.113.7/32]" {
			t.Errorf("at first: %s", got)
		}
		own.add([]netip.Addr{netip.MustParseAddr("203.0.113.8"), netip.MustParseAddr("fd00::1")}, zerolog.Nop())
		if got := fmt.Sprint(<-table.excluded); got != "[203.0.113.7/32 203.0.113.8/32]" {
			t.Errorf("later: %s", got)
		}
		end()
		s.work.Wait()
	})
}

func TestNamedAddressesAreOwn(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.7")
	o := newOwnAddresses(t.Context(), []netip.Addr{addr}, metadata{}, zerolog.Nop())
	if !o.has(addr) || !o.has(netip.AddrFrom16(addr.As16())) || o.has(addr.Next()) {
		t.Error("what is named is own, and nothing else")
	}
	if prefixes, _ := o.prefixes(); fmt.Sprint(prefixes) != "[203.0.113.7/32]" {
		t.Error(prefixes)
	}
}
