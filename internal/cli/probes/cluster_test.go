package probes

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/cluster/member"
)

// clusterRig is an etcd, an authority, and hosts that answer others.
type clusterRig struct {
	dir, endpoint string
	etcd          *clientv3.Client
}

// host has one answer that sees a folder of homes, and tells etcd of it.
func (r *clusterRig) host(t *testing.T, name, usersDir, version, instance string, settings map[string]string) {
	t.Helper()
	if err := forward.Issue(r.dir, name, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	at := func(file string) string { return filepath.Join(r.dir, file) }
	certs, err := forward.ReadCertificates(at(forward.AuthorityFile), at(name+".crt"), at(name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !forward.ServeHosts(w, req, usersDir, func() map[string]string { return settings }) {
			t.Errorf("asked for %s", req.URL)
		}
	})}
	go func() { _ = server.Serve(certs.Listen(listener)) }()
	t.Cleanup(func() { _ = server.Close() })
	text, err := json.Marshal(cluster.Node{Address: listener.Addr().String(), Version: version, Instance: instance})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.etcd.Put(t.Context(), cluster.Prefix+"nodes/"+name, string(text)); err != nil {
		t.Fatal(err)
	}
}

// look runs the checks as host h1 does.
func (r *clusterRig) look(t *testing.T, usersDir string, change func(*config.Config)) map[string]doctor.Finding {
	t.Helper()
	at := func(file string) string { return filepath.Join(r.dir, file) }
	cfg := config.Config{UsersDir: usersDir, Cluster: config.Cluster{
		Name: "h1", Etcd: []string{r.endpoint}, CAFile: at(forward.AuthorityFile), CertFile: at("h1.crt"), KeyFile: at("h1.key"), Homes: "shared",
	}}
	change(&cfg)
	checks, end, err := Cluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	found := map[string]doctor.Finding{}
	for _, f := range doctor.Run(t.Context(), checks, func(doctor.Finding) {}).Findings {
		found[f.Check] = f
	}
	return found
}

func (r *clusterRig) expect(t *testing.T, found map[string]doctor.Finding, check string, level string, text string) {
	t.Helper()
	f := found[check]
	if f.Level != level || !strings.Contains(f.Found, text) || (f.Remedy == "") != (level == doctor.OK) {
		t.Errorf("%s: %+v", check, f)
	}
}

func TestDoctorOfACluster(t *testing.T) {
	r := &clusterRig{dir: filepath.Join(t.TempDir(), "certificates")}
	r.etcd, r.endpoint = etcdtest.Start(t)
	if err := forward.MakeAuthority(r.dir); err != nil {
		t.Fatal(err)
	}
	users, nothing := t.TempDir(), func(*config.Config) {}
	local := func(cfg *config.Config) { cfg.Cluster.Homes = "local" }
	same, key := config.Config{E2B: config.E2B{Templates: map[string]config.E2BTemplate{"one": {}}}}, []byte("of all hosts")
	r.host(t, "h1", users, "v1", "i1", member.SameSettings(same, key))
	r.host(t, "h2", users, "v1", "i2", member.SameSettings(same, key))
	found := r.look(t, users, nothing)
	for check := range found {
		switch check {
		case "cluster inotify", "cluster connections", "cluster etcd", "cluster clocks": // as this machine is, which may be busy
			if found[check].Level == doctor.Fault {
				t.Errorf("%+v", found[check])
			}
		default:
			r.expect(t, found, check, doctor.OK, "")
		}
	}
	if len(found) != 11 {
		t.Errorf("%d checks: %+v", len(found), found)
	}
	if left, _ := filepath.Glob(users + "/.*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}

	// Of another version, with a copy of a dataDir, homes of its own, and other templates.
	r.host(t, "h3", t.TempDir(), "v2", "i1", member.SameSettings(config.Config{}, key))
	found = r.look(t, users, nothing)
	r.expect(t, found, "cluster settings", doctor.Fault, "hosts differ in\ne2b.templates: h1, h2 / h3")
	r.expect(t, found, "cluster versions", doctor.Warning, "h3: v2")
	r.expect(t, found, "cluster dataDir", doctor.Fault, "h1, h3")
	r.expect(t, found, "cluster homes", doctor.Fault, `h3: a file that has "first" is read as "" after a second`)
	if found := r.look(t, users, local); found["cluster homes"].Check != "" {
		t.Errorf("homes of one host are looked for at others: %+v", found["cluster homes"])
	}
	found = r.look(t, "/proc", local)
	r.expect(t, found, "cluster usersDir", doctor.Fault, "/proc/.doctor-")
	found = r.look(t, users, func(cfg *config.Config) { local(cfg); cfg.Cluster.Name = "h9" })
	r.expect(t, found, "cluster hosts", doctor.Fault, "h9, has no lease")
	r.expect(t, found, "cluster certificates", doctor.Fault, `cannot be used for host "h9"`)
	found = r.look(t, users, func(cfg *config.Config) { local(cfg); cfg.Cluster.KeyFile += ".missing" })
	r.expect(t, found, "cluster certificates", doctor.Fault, "h1.key.missing")
	found = r.look(t, users, func(cfg *config.Config) { local(cfg); cfg.Cluster.Etcd = []string{"http://127.0.0.1:1"} })
	r.expect(t, found, "cluster etcd", doctor.Fault, "does not answer")
	r.expect(t, found, "cluster hosts", doctor.Fault, "does not say which hosts there are")
	gone := cluster.Node{Address: "127.0.0.1:1"}
	text, _ := json.Marshal(gone)
	if _, err := r.etcd.Put(t.Context(), cluster.Prefix+"nodes/h4", string(text)); err != nil {
		t.Fatal(err)
	}
	r.expect(t, r.look(t, users, local), "cluster hosts", doctor.Fault, "h4: dial")
	// Its lease has ended, and it has not said that nothing runs there.
	if _, err := r.etcd.Delete(t.Context(), cluster.Prefix+"nodes/h4"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"h1", "h4"} {
		if _, err := r.etcd.Put(t.Context(), cluster.Prefix+"members/"+name, "7"); err != nil {
			t.Fatal(err)
		}
	}
	r.expect(t, r.look(t, users, local), "cluster hosts", doctor.Warning, "without a lease: h4; 3 answer: h1, h2, h3")
}

// told is a cluster that answers as it is told.
type told struct {
	doctor.Asked
	hosts  []doctor.Host
	hoards bool
	sysctl int
	err    error
}

func (c told) Hosts(context.Context) ([]doctor.Host, error) { return c.hosts, nil }
func (c told) Etcd(context.Context) (time.Duration, error)  { return time.Millisecond, nil }
func (c told) Hoards(context.Context, int64) (bool, error)  { return c.hoards, c.err }
func (c told) Sysctl(string) (int, error)                   { return c.sysctl, c.err }

// Each setting that has to be the same on all hosts is found where it is not, and nothing of it is told.
func TestDoctorOfSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := []byte("of all hosts")
	looked := func(other map[string]string) doctor.Finding {
		checks := (&doctor.Cluster{Ask: told{hosts: []doctor.Host{
			{Name: "h1", Settings: member.SameSettings(config.Config{}, key)}, {Name: "h2", Settings: other},
			{Name: "h3", Fault: errors.New("silent")},
		}}}).Checks()
		return checks[4].Look(t.Context())
	}
	for want, change := range map[string]func(*config.Config){
		"":                     func(cfg *config.Config) { cfg.Cluster.Name, cfg.UsersDir = "h2", "/elsewhere" },
		"homeOwner":            func(cfg *config.Config) { cfg.HomeOwner.UID = 7 },
		"tcp.tokensFile":       func(cfg *config.Config) { cfg.TCP.TokensFile = file },
		"e2b.listen":           func(cfg *config.Config) { cfg.E2B.Listen = "7482" },
		"e2b.domain":           func(cfg *config.Config) { cfg.E2B.Domain = "boxes.test" },
		"e2b.defaultNetwork":   func(cfg *config.Config) { cfg.E2B.DefaultNetwork = "blocked" },
		"e2b.allowRoot":        func(cfg *config.Config) { cfg.E2B.AllowRoot = true },
		"e2b.templates":        func(cfg *config.Config) { cfg.E2B.Templates = map[string]config.E2BTemplate{"one": {Start: "secret"}} },
		"cluster.homes":        func(cfg *config.Config) { cfg.Cluster.Homes = "local" },
		"cluster.fenceCommand": func(cfg *config.Config) { cfg.Cluster.FenceCommand = []string{"off", "secret"} },
	} {
		var cfg config.Config
		change(&cfg)
		other := member.SameSettings(cfg, key)
		f := looked(other)
		if want == "" && f.Level != doctor.OK || want != "" && (f.Level != doctor.Fault || f.Found != "hosts differ in\n"+want+": h1 / h2") {
			t.Errorf("%q: %+v", want, f)
		}
		if strings.Contains(fmt.Sprint(other, f), "secret") || want != "" && other[want] == member.SameSettings(cfg, []byte("another"))[want] {
			t.Errorf("%q tells something: %v", want, other)
		}
	}
	if f := looked(member.SameSettings(config.Config{}, []byte("another"))); f.Found != "hosts differ in\ncluster.sealingKeyFile: h1 / h2" {
		t.Errorf("another key: %+v", f)
	}
	if f := looked(nil); f.Level != doctor.OK { // of an earlier version, which another check tells
		t.Errorf("%+v", f)
	}
}

func TestDoctorOfClocksAndCertificates(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		ahead, left time.Duration
		level       string
		found       string
	}{
		{ahead: -3 * time.Millisecond, left: 90 * 24 * time.Hour, level: doctor.OK},
		{ahead: -3 * time.Second, left: 20 * 24 * time.Hour, level: doctor.Warning, found: "expires in 20 days"},
		{ahead: 3 * time.Hour, left: -time.Second, level: doctor.Fault, found: "h2 has expired at 2026-01-02 03:04:04"},
	} {
		checks := (&doctor.Cluster{
			Name: "h1", Now: now, Ask: told{hosts: []doctor.Host{
				{Name: "h1", Expires: now.AddDate(1, 0, 0)}, {Name: "h2", Ahead: c.ahead, Expires: now.Add(c.left)},
			}},
		}).Checks()
		if f := checks[2].Look(t.Context()); f.Level != c.level || !strings.Contains(f.Found, c.found) {
			t.Errorf("certificates: %+v", f)
		}
		if f := checks[5].Look(t.Context()); (f.Level == doctor.OK) != (c.ahead.Abs() < time.Second) {
			t.Errorf("clocks: %+v", f)
		}
	}
}

func TestDoctorOfConnections(t *testing.T) {
	for _, c := range []struct {
		retries int
		err     error
		want    string
	}{{4, nil, doctor.OK}, {15, nil, doctor.Warning}, {0, os.ErrNotExist, doctor.Skipped}} {
		checks := (&doctor.Cluster{Ask: told{sysctl: c.retries, err: c.err}}).Checks()
		if f := checks[9].Look(t.Context()); checks[9].Name != "cluster connections" || f.Level != c.want {
			t.Errorf("%d: %+v", c.retries, f)
		}
	}
}

// An etcd that never compacts its history fills up.
func TestAnEtcdThatFillsUp(t *testing.T) {
	for _, c := range []struct {
		hoards bool
		err    error
		want   string
	}{{true, nil, doctor.Warning}, {false, nil, doctor.OK}, {false, errors.New("silent"), doctor.OK}} {
		checks := (&doctor.Cluster{Ask: told{hoards: c.hoards, err: c.err}}).Checks()
		if f := checks[0].Look(t.Context()); checks[0].Name != "cluster etcd" || f.Level != c.want || strings.Contains(f.Remedy, "--auto-compaction-retention") != c.hoards {
			t.Errorf("%t: %+v", c.hoards, f)
		}
	}
}

// Of several authorities in one file, the one that expires first counts, wherever it stands.
func TestExpiryOfSeveralAuthorities(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certificates")
	if err := errors.Join(forward.MakeAuthority(dir), forward.Issue(dir, "h1", "127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(dir, forward.AuthorityFile)
	persistent, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	ending := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: soon, IsCA: true}
	der, err := x509.CreateCertificate(nil, ending, ending, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(caFile, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), persistent...), 0o600); err != nil {
		t.Fatal(err)
	}
	host := config.Cluster{
		Name: "h1", CAFile: caFile, CertFile: filepath.Join(dir, "h1.crt"), KeyFile: filepath.Join(dir, "h1.key"),
	}
	if all, err := Expiry(host); err != nil || !all[caFile].Equal(soon) {
		t.Errorf("%v, %v; want %v", all, err, soon)
	}
}
