package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// A cloud's host often has a public address that none of its interfaces has: the cloud translates
// it, and what a container sends there comes back to the host. No route shows such an address, so
// the operator names it, and the cloud is asked for it.

// ownAddresses are the addresses of the host that the kernel does not know.
type ownAddresses struct {
	asked  chan struct{} // closed when the cloud was asked once
	finder sync.WaitGroup

	mu    sync.Mutex
	addrs []netip.Addr
	more  chan struct{} // closed when addrs changes
}

// metadata is whom to ask for more addresses, and how long to wait before each further attempt
// where nobody answers. Without a server nobody is asked.
type metadata struct {
	server string
	waits  []time.Duration
}

// newOwnAddresses starts with the named addresses and asks source for more, until it has answered
// or ctx ends.
func newOwnAddresses(ctx context.Context, named []netip.Addr, source metadata,
	log zerolog.Logger) *ownAddresses {
	o := &ownAddresses{
		asked: make(chan struct{}), more: make(chan struct{}), addrs: slices.Clone(named),
	}
	if source.server == "" {
		close(o.asked)
		return o
	}
	o.finder.Go(func() { o.find(ctx, source, log) })
	return o
}

// find asks the cloud. While a host starts, its metadata may not answer yet, or not all of it; and a
// host that is in no cloud has none, and is not asked for ever.
func (o *ownAddresses) find(ctx context.Context, source metadata, log zerolog.Logger) {
	first := sync.OnceFunc(func() { close(o.asked) })
	defer first()
	for attempt := 0; ; attempt++ {
		addrs, err := PublicAddresses(ctx, source.server)
		o.add(addrs, log)
		first()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && attempt > 0:
			log.Info().Msg("the cloud's metadata has answered")
			return
		case err == nil:
			return
		case attempt == len(source.waits):
			log.Info().Err(err).Msg("a cloud's metadata does not answer, or not all questions: it is not " +
				"asked again before the next start; name public addresses that others translate to " +
				"this host's in egress.ownAddresses")
			return
		case attempt == 0:
			log.Info().Err(err).Msg("a cloud's metadata does not answer, or not all questions: " +
				"it is asked again for some minutes")
		}
		pause(ctx, source.waits[attempt])
	}
}

// add adds what is not known yet.
func (o *ownAddresses) add(addrs []netip.Addr, log zerolog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, addr := range addrs {
		if slices.Contains(o.addrs, addr) {
			continue
		}
		o.addrs = append(o.addrs, addr)
		close(o.more)
		o.more = make(chan struct{})
		log.Info().Stringer("address", addr).
			Msg("the cloud's metadata names a public address of this host: no container reaches it")
	}
}

// all returns the addresses, and a channel that is closed when there are more. It waits until the
// cloud was asked once, which takes a second at most.
func (o *ownAddresses) all() (addrs []netip.Addr, more <-chan struct{}) {
	<-o.asked
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.addrs), o.more
}

func (o *ownAddresses) has(addr netip.Addr) bool {
	addrs, _ := o.all()
	return slices.Contains(addrs, addr.Unmap())
}

// prefixes is all with the IPv4 addresses alone, in the form that rules takes.
func (o *ownAddresses) prefixes() (list []netip.Prefix, more <-chan struct{}) {
	addrs, more := o.all()
	for _, addr := range addrs {
		if addr.Is4() {
			list = append(list, netip.PrefixFrom(addr, 32))
		}
	}
	return list, more
}

// MetadataServer is where clouds answer their hosts.
const MetadataServer = "http://169.254.169.254"

const (
	// metadataPatience bounds all questions together, metadataDial each connection: where there is
	// no cloud, there is no answer.
	metadataPatience = time.Second
	metadataDial     = 300 * time.Millisecond
)

// metadataWaits are less than nine minutes in all: within that a host has its network.
var metadataWaits = []time.Duration{
	time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
	32 * time.Second, 64 * time.Second, 128 * time.Second, 256 * time.Second,
}

// metadataQuestion is how to ask one cloud for a host's public address. Other clouds answer with an
// error, or no address.
type metadataQuestion struct {
	path   string
	header [2]string
}

var metadataQuestions = []metadataQuestion{
	{path: "/latest/meta-data/public-ipv4"}, // Amazon, with a token, and clouds like it, without one
	{"/computeMetadata/v1/instance/network-interfaces/0/access-configs/0/external-ip",
		[2]string{"Metadata-Flavor", "Google"}},
	{"/metadata/instance/network/interface/0/ipv4/ipAddress/0/publicIpAddress?api-version=2021-02-01&format=text",
		[2]string{"Metadata", "true"}},
	{path: "/hetzner/v1/metadata/public-ipv4"},
	{path: "/metadata/v1/interfaces/public/0/ipv4/address"}, // DigitalOcean
	{path: "/metadata/v1/floating_ip/ipv4/ip_address"},
}

// PublicAddresses asks a metadata server which public addresses the host has. It takes a second at
// most. The error says that there is no server, or that it has left a question without an answer:
// then there may be more addresses.
func PublicAddresses(ctx context.Context, server string) (addrs []netip.Addr, _ error) {
	ctx, cancel := context.WithTimeout(ctx, metadataPatience)
	defer cancel()
	dialer := net.Dialer{Timeout: metadataDial}
	client := &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	token, tokenErr := askMetadata(ctx, client, http.MethodPut, server+"/latest/api/token",
		[2]string{"X-aws-ec2-metadata-token-ttl-seconds", "60"})
	if tokenErr != nil && !errors.Is(tokenErr, errBusy) {
		return nil, tokenErr
	}
	answers, faults := make([]string, len(metadataQuestions)), make([]error, len(metadataQuestions))
	var asking sync.WaitGroup
	for i, q := range metadataQuestions {
		if i == 0 && token != "" {
			q.header = [2]string{"X-aws-ec2-metadata-token", token}
		}
		asking.Go(func() {
			answers[i], faults[i] = askMetadata(ctx, client, http.MethodGet, server+q.path, q.header)
		})
	}
	asking.Wait()
	for _, text := range answers {
		if addr, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil &&
			!slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, cmp.Or(append(faults, tokenErr)...)
}

// errBusy means that a server answers, but cannot say now.
var errBusy = errors.New("the metadata server is not ready")

// askMetadata returns the text of a successful answer, and none for another answer. The error says
// that there was no answer, or one that says to ask again.
func askMetadata(ctx context.Context, client *http.Client, method, url string,
	header [2]string) (text string, _ error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	if header[0] != "" {
		req.Header.Set(header[0], header[1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout:
		return "", fmt.Errorf("%w: %s", errBusy, resp.Status)
	case http.StatusOK:
		return string(body), err
	default:
		return "", err
	}
}
