package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/inet"
)

// metadataAddrs are addresses at which clouds have their metadata servers, or could. Each run of the suite has one.
var metadataAddrs = []string{
	"169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.169.253", "169.254.169.123", "169.254.42.42", "169.254.0.23", "169.254.10.10",
}

const privateAddrs = 16

// worldOf returns the test internet of a run. Names and addresses belong to the host, so no two runs share any.
func worldOf(p *place, run int) (cfg inet.Config, privates []netip.Addr, metadata netip.Addr) {
	public := "198.51.100.0/24"
	if run > 0 {
		public = fmt.Sprintf("198.19.%d.0/24", run)
	}
	for addr := netip.AddrFrom4([4]byte{10, 77, byte(run), 5}); len(privates) < privateAddrs; addr = addr.Next() {
		privates = append(privates, addr)
	}
	metadata = netip.MustParseAddr(metadataAddrs[run])
	return inet.Config{
		Name: fmt.Sprintf("%s-%d", p.inet, run), Public: netip.MustParsePrefix(public), Extra: append(slices.Clone(privates), metadata),
	}, privates, metadata
}

// world is the test internet that all scenarios of a place share.
type world struct {
	*inet.Inet
	// shared and other are two origins that scenarios share.
	shared, other netip.Addr
	metadata      netip.Addr // stands for a cloud's metadata server
	public        netip.Prefix
	given         int          // how many fresh addresses were given out
	privates      []netip.Addr // not given out yet
	tools         sync.Once    // serveTools
}

var (
	worldMu sync.Mutex
	worlds  = map[*place]*world{}
)

func openWorld(t *testing.T) *world {
	t.Helper()
	return openWorldBeside(t, machine)
}

// openWorldBeside returns the test internet that is reached from a place.
func openWorldBeside(t *testing.T, p *place) *world {
	t.Helper()
	worldMu.Lock()
	defer worldMu.Unlock()
	if w := worlds[p]; w != nil {
		return w
	}
	var in *inet.Inet
	cfg, privates, metadata := worldOf(p, runNumber)
	err := p.do(func() (err error) {
		in, err = inet.New(context.Background(), cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Inet: in, shared: in.Addr(10), other: in.Addr(11), metadata: metadata, public: cfg.Public, privates: privates}
	for _, addr := range []netip.Addr{w.shared, w.other, w.metadata} {
		if err := in.Origin(addr); err != nil {
			_ = in.Close()
			t.Fatal(err)
		}
	}
	worlds[p] = w
	return w
}

func closeWorlds() {
	worldMu.Lock()
	defer worldMu.Unlock()
	for _, w := range worlds {
		_ = w.Close()
	}
}

// worldSettings returns the settings with which a sandboxd uses the test internet.
func worldSettings(w *world) []string {
	return []string{
		"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=" + w.DNSServers()[0].String(),
		"SANDBOXD_DOCKER_LOCAL_DNS_SERVERS=" + w.DNSServers()[1].String(),
		"SANDBOXD_DOCKER_ALLOW_LOCAL_NETWORKING_FOR_USERS=local",
		"SANDBOXD_EGRESS_ALSO_PUBLIC=" + w.public.String(),
	}
}

// egressName returns a name for a lab's networks that no other lab has.
func egressName() string { return "e" + strings.ToLower(rand.Text()[:8]) }

// eachOutside runs a scenario once for each runtime, in a lab that uses the test internet and is shared
// with other such scenarios.
func eachOutside(t *testing.T, scenario func(t *testing.T, l *lab, w *world)) {
	each(t, func(t *testing.T, p *place, runtime string) {
		w := openWorldBeside(t, p)
		scenario(t, sharedLab(t, p, "world "+runtime, append(runtimeSettings(runtime), worldSettings(w)...)), w)
	})
}

// eachOutsideOwn is eachOutside with a lab of the scenario's own.
func eachOutsideOwn(t *testing.T, scenario func(t *testing.T, l *lab, w *world), settings ...string) {
	each(t, func(t *testing.T, p *place, runtime string) {
		w := openWorldBeside(t, p)
		scenario(t, newLabIn(t, p, runtime, append(worldSettings(w), settings...)...), w)
	})
}

// traveller registers a user's sandbox that may use the network, and puts the certificate of the test
// internet into the home as ~/ca.pem.
func (l *lab) traveller(t *testing.T, w *world, user string) {
	t.Helper()
	l.put(t, user, "ca.pem", string(w.CA()))
	l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Network: true}})
}

// reach runs a command that may reach the domains.
func (l *lab) reach(t *testing.T, user, command string, domains ...string) types.Output {
	t.Helper()
	return l.run(t, user, types.Exec{
		Command: command, Permissions: []string{"@network"}, AllowedDomains: domains, TimeoutMs: new(int64(120_000)),
		Env: map[string]string{"CURL_CA_BUNDLE": "/home/ca.pem", "SSL_CERT_FILE": "/home/ca.pem"},
	})
}

// hello returns a command that fetches /hello of a URL with curl.
func hello(url string) string { return "curl -sS --max-time 20 " + url + "/hello" }

// refused returns the last verdict about a name, and the sum of the counts of all its lines.
func refused(out types.Output, name string) (verdict string, count int) {
	for _, line := range out.Egress {
		if line.Name == name {
			verdict = string(line.Verdict)
			count += int(line.Count)
		}
	}
	return verdict, count
}

// arrivals returns the paths of the requests that came for a host, in order.
func (w *world) arrivals(host string) (paths []string) {
	for _, a := range w.Arrived() {
		if a.Kind == inet.Request && a.Host == host {
			paths = append(paths, a.Path)
		}
	}
	return paths
}

// name makes a name in the test internet that no other scenario has.
func (w *world) name(t *testing.T, label string, addrs ...netip.Addr) string {
	t.Helper()
	name := label + "." + strings.ToLower(rand.Text()[:8]) + ".example"
	w.DNS.SetA(name, time.Minute, addrs...)
	return name
}

// networks returns the names of the networks that Docker has for this lab.
func (l *lab) networks() []string {
	instance := l.instance()
	if instance == "" {
		return nil
	}
	list, err := l.engine.NetworkList(context.Background(), network.ListOptions{
		Filters: filters.NewArgs(filters.Arg("label", "run.daycare.sandbox.instance="+instance)),
	})
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names
}

// removeNetworks removes the lab's networks and rules. Its sandboxd and its containers must be gone.
func (l *lab) removeNetworks() {
	for _, name := range l.networks() {
		_ = l.engine.NetworkRemove(context.Background(), name)
	}
	for _, profile := range []string{"isolated", "local"} {
		for _, family := range []string{"inet", "bridge", "arp"} {
			_ = l.place.do(exec.Command("nft", "delete", "table", family, l.egress+"-"+profile).Run)
		}
	}
}

// nft runs nft and returns what it prints.
func (p *place) nft(t *testing.T, args ...string) string {
	t.Helper()
	return p.command(t, "nft", args...)
}

func (p *place) ip(t *testing.T, args ...string) {
	t.Helper()
	p.command(t, "ip", args...)
}

func (p *place) command(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out []byte
	if err := p.do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// addressOf returns a container's address on the lab's network.
func (l *lab) addressOf(t *testing.T, id string) string {
	t.Helper()
	found, err := l.engine.ContainerInspect(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	if addr := found.Config.Labels["run.daycare.sandbox.address"]; addr != "" { // its runtime has connected it
		return addr
	}
	for name, end := range found.NetworkSettings.Networks {
		if strings.HasPrefix(name, l.egress) {
			return end.IPAddress
		}
	}
	t.Fatalf("container %.12s is on no network of the lab: %v", id, found.NetworkSettings.Networks)
	return ""
}

// succeeds fails the test if the command failed, and otherwise returns what it printed.
func succeeds(t *testing.T, out types.Output) string {
	t.Helper()
	if out.Failed {
		t.Fatalf("failed with %s: %.500q %.500q, egress %v", exitText(out), out.Stdout, out.Stderr, out.Egress)
	}
	return strings.TrimSuffix(out.Stdout, "\n")
}

func exitText(out types.Output) string {
	if out.ExitCode == nil {
		return fmt.Sprintf("signal %v", out.Signal)
	}
	return fmt.Sprint(*out.ExitCode)
}

// private makes an origin at an address of a private network that no other scenario uses.
func (w *world) private(t *testing.T) netip.Addr {
	t.Helper()
	worldMu.Lock()
	defer worldMu.Unlock()
	if len(w.privates) == 0 {
		t.Fatal("privateAddrs is too low")
	}
	addr := w.privates[0]
	w.privates = w.privates[1:]
	if err := w.Origin(addr); err != nil {
		t.Fatal(err)
	}
	return addr
}

// origin makes an origin at an address of the test internet that no other scenario uses.
func (w *world) origin(t *testing.T) netip.Addr {
	t.Helper()
	addr := w.fresh()
	if err := w.Origin(addr); err != nil {
		t.Fatal(err)
	}
	return addr
}

// fresh returns an address of the test internet that no other scenario uses.
func (w *world) fresh() netip.Addr {
	worldMu.Lock()
	defer worldMu.Unlock()
	w.given++
	return w.Addr(100 + w.given)
}

func (w *world) capture(t *testing.T) *inet.Capture {
	t.Helper()
	c, err := w.Capture()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
