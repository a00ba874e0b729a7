package egress

import (
	"context"
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
	known  chan struct{} // closed when no more will become known
	mu     sync.Mutex
	addrs  []netip.Addr
	finder sync.WaitGroup
}

// newOwnAddresses starts with the named addresses and, if ask is set, asks the cloud for more,
// until ctx ends.
func newOwnAddresses(ctx context.Context, named []netip.Addr, ask bool,
	log zerolog.Logger) *ownAddresses {
	o := &ownAddresses{known: make(chan struct{}), addrs: slices.Clone(named)}
	if !ask {
		close(o.known)
		return o
	}
	o.finder.Go(func() {
		defer close(o.known)
		for _, addr := range PublicAddresses(ctx, MetadataServer) {
			o.mu.Lock()
			if !slices.Contains(o.addrs, addr) {
				o.addrs = append(o.addrs, addr)
				log.Info().Stringer("address", addr).
					Msg("the cloud's metadata names a public address of this host: no container reaches it")
			}
			o.mu.Unlock()
		}
	})
	return o
}

// all returns the addresses. It waits until the cloud has answered, which takes a second at most.
func (o *ownAddresses) all() []netip.Addr {
	<-o.known
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.addrs)
}

func (o *ownAddresses) has(addr netip.Addr) bool { return slices.Contains(o.all(), addr.Unmap()) }

// prefixes returns the IPv4 addresses in the form that rules takes.
func (o *ownAddresses) prefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, addr := range o.all() {
		if addr.Is4() {
			list = append(list, netip.PrefixFrom(addr, 32))
		}
	}
	return list
}

// MetadataServer is where clouds answer their hosts.
const MetadataServer = "http://169.254.169.254"

const (
	// metadataPatience bounds all questions together, metadataDial each connection: where there is
	// no cloud, there is no answer.
	metadataPatience = time.Second
	metadataDial     = 300 * time.Millisecond
)

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

// PublicAddresses asks a metadata server which public addresses the host has. Where there is no
// server, it takes a moment and returns nothing.
func PublicAddresses(ctx context.Context, server string) (addrs []netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, metadataPatience)
	defer cancel()
	dialer := net.Dialer{Timeout: metadataDial}
	client := &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	token, reached := askMetadata(ctx, client, http.MethodPut, server+"/latest/api/token",
		[2]string{"X-aws-ec2-metadata-token-ttl-seconds", "60"})
	if !reached {
		return nil
	}
	answers := make([]string, len(metadataQuestions))
	var asking sync.WaitGroup
	for i, q := range metadataQuestions {
		if i == 0 && token != "" {
			q.header = [2]string{"X-aws-ec2-metadata-token", token}
		}
		asking.Go(func() {
			answers[i], _ = askMetadata(ctx, client, http.MethodGet, server+q.path, q.header)
		})
	}
	asking.Wait()
	for _, text := range answers {
		if addr, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil &&
			!slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// askMetadata returns the text of a successful answer, and whether there was any answer.
func askMetadata(ctx context.Context, client *http.Client, method, url string,
	header [2]string) (text string, reached bool) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", false
	}
	if header[0] != "" {
		req.Header.Set(header[0], header[1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", true
	}
	return string(body), true
}
