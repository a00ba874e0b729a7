package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

const (
	engineToken = "engine-0123456789abcdef0123456789abcdef"
	scopedToken = "scoped-0123456789abcdef0123456789abcdef"
)

// tcpLab is a lab that is reached over TLS, too.
type tcpLab struct {
	*lab
	url, authority string // the latter a file
	trust          *tls.Config
	dir            string
}

func newTCPLab(t *testing.T, runtime string, settings ...string) *tcpLab {
	t.Helper()
	l := &tcpLab{dir: t.TempDir()}
	certificate, key := selfSigned(t, time.Now().Add(time.Hour))
	l.authority = l.file(t, "cert.pem", certificate)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	l.trust = &tls.Config{RootCAs: roots}
	address := freePort(t)
	l.url = "https://" + address
	l.lab = newLab(t, runtime, append(settings, "SANDBOXD_TCP_LISTEN="+address, "SANDBOXD_LOG_ACCESS=true",
		"SANDBOXD_TCP_CERT_FILE="+l.authority, "SANDBOXD_TCP_KEY_FILE="+l.file(t, "key.pem", key),
		"SANDBOXD_TCP_TOKENS_FILE="+l.file(t, "tokens.json", `{"tokens":[
			{"name":"engine","token":"`+engineToken+`"},
			{"name":"of-tess","token":"`+scopedToken+`","users":["tess"]}]}`))...)
	return l
}

func (l *tcpLab) file(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(l.dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// as is a client with a token.
func (l *tcpLab) as(t *testing.T, token string) *client.Client {
	t.Helper()
	c, err := client.Open(client.Config{URL: l.url, Token: token, TLS: l.trust, WrapTransport: func(next http.RoundTripper) http.RoundTripper { return held{next} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// givenPorts is how many addresses freePort has looked at.
var givenPorts atomic.Int32

// freePort is an address of this host that nobody listens on and that nobody was given before: beside exposePorts,
// below what the kernel gives to connections, for else one of those may have it before it is used.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		port := int32(ports()) + 200 + givenPorts.Add(1)
		if port >= int32(ports())+1000 {
			t.Fatal("no port is free")
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			defer listener.Close()
			return listener.Addr().String()
		}
	}
}

// selfSigned is a certificate for this host, which is its own authority, and its key. It was made two hours
// before its end.
func selfSigned(t *testing.T, end time.Time) (certificate, key string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sandboxd"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: end.Add(-2 * time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true,
	}
	private := newKey(t)
	return sign(t, template, template, private, private)
}

// wildcard is a certificate for names, with its key and the authority that has signed it.
func wildcard(t *testing.T, names ...string) (authority, certificate, key string) {
	t.Helper()
	above := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the test's authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	below := *above
	below.SerialNumber, below.Subject, below.IsCA, below.KeyUsage, below.DNSNames = big.NewInt(2), pkix.Name{CommonName: names[0]}, false, x509.KeyUsageDigitalSignature, names
	its, private := newKey(t), newKey(t)
	authority, _ = sign(t, above, above, its, its)
	certificate, key = sign(t, &below, above, private, its)
	return authority, certificate, key
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign is a certificate of an authority's for a key, with that key.
func sign(t *testing.T, what, by *x509.Certificate, private, its *ecdsa.PrivateKey) (certificate, key string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, what, by, private.Public(), its)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", secret)
}

// A token that is for one user drives that user's sandboxes over TLS, and knows of no other.
func TestATokenOfOneUser(t *testing.T) {
	l := newTCPLab(t, "runsc")
	ctx := t.Context()
	engine, tess := l.as(t, engineToken), l.as(t, scopedToken)
	for id, user := range map[string]string{"tess-1": "tess", "other-1": "other"} {
		if _, err := engine.Put(ctx, id, types.Registration{UserID: user}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := tess.Exec(ctx, "tess-1", types.Exec{Command: "uname -r; echo hers > note", Permissions: workspace})
	if err != nil || !strings.Contains(out.Stdout, "gvisor") || out.Failed {
		t.Fatalf("her own: %+v, %v", out, err)
	}
	var streamed bytes.Buffer
	if _, err := tess.Attach(ctx, "tess-1", types.Exec{Command: "cat note"}, client.Streams{Stdout: &streamed}); err != nil || streamed.String() != "hers\n" {
		t.Errorf("attached: %q, %v", streamed.String(), err)
	}
	download, err := tess.Download(ctx, "tess-1", "note", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer download.Close()
	if text, err := io.ReadAll(download); err != nil || string(text) != "hers\n" {
		t.Errorf("downloaded: %q, %v", text, err)
	}
	process, err := tess.StartProcess(ctx, "tess-1", types.StartProcess{Command: "sleep 7506"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.StopProcess(ctx, "tess-1", process.ID, "KILL"); err != nil {
		t.Errorf("stopped by the engine: %v", err)
	}

	if _, err := engine.Exec(ctx, "other-1", types.Exec{Command: "echo his > note", Permissions: workspace}); err != nil {
		t.Fatal(err)
	}
	execOf := func(id string) error { _, err := tess.Exec(ctx, id, types.Exec{Command: "cat note"}); return err }
	attachTo := func(id string) error {
		_, err := tess.Attach(ctx, id, types.Exec{Command: "cat note"}, client.Streams{})
		return err
	}
	readIn := func(id string) error {
		_, err := tess.Read(ctx, id, types.Read{Target: client.Target("note")})
		return err
	}
	processesOf := func(id string) error { _, err := tess.Processes(ctx, id); return err }
	for name, call := range map[string]func(string) error{"exec": execOf, "attach": attachTo, "read": readIn, "processes": processesOf} {
		var his, nobodys *client.Error
		if !errors.As(call("other-1"), &his) || !errors.As(call("nobody-1"), &nobodys) || his.Kind != types.NotFound ||
			strings.ReplaceAll(his.Message, "other-1", "nobody-1") != nobodys.Message {
			t.Errorf("%s: %v, and of what does not exist: %v", name, his, nobodys)
		}
	}
	boxes, err := tess.List(ctx)
	if err != nil || len(boxes) != 1 || boxes[0].ID != "tess-1" {
		t.Errorf("what there is: %+v, %v", boxes, err)
	}
	var refusal *client.Error
	all, err := engine.Containers(ctx)
	if err != nil || !slices.ContainsFunc(all, func(c types.Container) bool { return c.UserID == "other" }) {
		t.Errorf("the service's containers: %+v, %v", all, err)
	}
	hers, err := tess.Containers(ctx)
	if err != nil || len(hers) == 0 || slices.ContainsFunc(hers, func(c types.Container) bool { return c.UserID != "tess" }) {
		t.Errorf("her containers: %+v, %v", hers, err)
	}
	if list, err := tess.AllContainers(ctx); err != nil || list.Pooled != nil {
		t.Errorf("nobody's containers, for her: %+v, %v", list.Pooled, err)
	}
	if _, err := tess.Put(ctx, "mine", types.Registration{UserID: "other"}); !errors.As(err, &refusal) || !strings.Contains(refusal.Message, "may act for tess alone") {
		t.Errorf("a sandbox for another: %v", err)
	}
	if _, err := l.as(t, "x"+scopedToken).Health(ctx); !errors.As(err, &refusal) || refusal.Message != "the token is not known" {
		t.Errorf("a wrong token: %v", err)
	}
	if text := l.log.String(); strings.Contains(text, engineToken) || strings.Contains(text, scopedToken) || strings.Contains(text, "hers") ||
		!strings.Contains(text, `"caller":"of-tess","sandbox":"tess-1"`) {
		t.Errorf("the log:\n%s", l.log.tail())
	}
}

// The operator exchanges a token: who has the old one is let in no more, and what it began goes on to its end.
func TestTokensAreExchanged(t *testing.T) {
	const newToken = "second-0123456789abcdef0123456789abcdef"
	l := newTCPLab(t, "runsc")
	ctx := t.Context()
	before, after := l.as(t, engineToken), l.as(t, newToken)
	if _, err := before.Put(ctx, "rotated", types.Registration{UserID: "rotated"}); err != nil {
		t.Fatal(err)
	}
	typed, feed := io.Pipe()
	begun, ended := make(chan struct{}), make(chan error, 1)
	var out bytes.Buffer
	go func() {
		_, err := before.Attach(ctx, "rotated", types.Exec{Command: "cat"}, client.Streams{
			Stdin: typed, Stdout: &out, Started: func(client.Start) { close(begun) },
		})
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	unknown := func(c *client.Client) bool {
		var refusal *client.Error
		_, err := c.Get(ctx, "rotated")
		return errors.As(err, &refusal) && refusal.Message == "the token is not known"
	}
	if unknown(before) || !unknown(after) {
		t.Fatal("the tokens of the beginning are not in force")
	}

	l.file(t, "tokens.json", `{"tokens":[{"name":"engine","token":"`+newToken+`"}]}`)
	l.reload(t)
	if !unknown(before) || unknown(after) {
		t.Error("the tokens before are in force")
	}
	l.file(t, "tokens.json", `{"tokens":[{"name":"engine","token":"`+engineToken+`"},{"name":"short","token":"x"}]}`)
	l.reload(t)
	if !unknown(before) || unknown(after) || !strings.Contains(l.log.String(), `tokens[1] (\"short\"): the token has 1 characters`) {
		t.Errorf("a file with a fault is taken; the log:\n%s", l.log.tail())
	}
	if h := l.health(t); len(h.Warnings) != 1 || !strings.Contains(h.Warnings[0], "the tokens were read again and cannot be used") {
		t.Errorf("health tells of %+v", h)
	}

	if _, err := io.WriteString(feed, "still here\n"); err != nil {
		t.Fatal(err)
	}
	_ = feed.Close()
	if err := <-ended; err != nil || out.String() != "still here\n" {
		t.Errorf("what the old token began: %q, %v", out.String(), err)
	}
	if text := l.log.String(); strings.Contains(text, newToken) || !strings.Contains(text, `"gone":["engine","of-tess"],"new":["engine"]`) {
		t.Errorf("the log:\n%s", l.log.tail())
	}
}

// The command line takes the same way.
func TestCommandLineOverTLS(t *testing.T) {
	l := newTCPLab(t, "runsc")
	token := l.file(t, "token", scopedToken+"\n")
	for _, c := range []struct {
		name           string
		args           []string
		stdout, stderr string
		code           int
	}{
		{"her own", []string{"exec", "--user", "tess", "--", "echo $((6*7))"}, "42\n", "", 0},
		{"another's", []string{"exec", "--user", "other", "--", "true"}, "", "may act for tess alone", 125},
	} {
		cmd := exec.Command(filepath.Join(binaries, "sandbox"), c.args...)
		cmd.Env = append(slices.Clone(l.environ), "SANDBOX_URL="+l.url, "SANDBOX_TOKEN_FILE="+token, "SANDBOX_CA_FILE="+l.authority)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its exit code says it
		if code := cmd.ProcessState.ExitCode(); code != c.code || stdout.String() != c.stdout || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", c.name, code, stdout.String(), stderr.String())
		}
	}
}

// What would be no protection keeps the service from starting.
func TestAccessThatIsRefusedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.json")
	start := func(text string, mode os.FileMode, settings ...string) string {
		t.Helper()
		if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(tokens, mode); err != nil {
			t.Fatal(err)
		}
		l, err := openLab(t, machine, append([]string{"SANDBOXD_TCP_LISTEN=" + freePort(t), "SANDBOXD_TCP_TOKENS_FILE=" + tokens}, settings...))
		if err == nil {
			l.close()
			return "it has started"
		}
		return err.Error()
	}
	good := `{"tokens":[{"name":"engine","token":"` + engineToken + `"}]}`
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, says, want string }{
		{"an empty token", start(`{"tokens":[{"name":"engine","token":""}]}`, 0o600), `tokens[0] ("engine"): the token is empty`},
		{"users that are none", start(`{"tokens":[{"name":"engine","token":"`+engineToken+`","users":[]}]}`, 0o600), "users is empty, which is nobody"},
		{"tokens that others may read", start(good, 0o644), "chmod 600 " + tokens},
		{"no tokens", start(good, 0o600, "SANDBOXD_TCP_TOKENS_FILE="), "a caller over TCP needs a token"},
		{"a socket where others write", start(good, 0o600, "SANDBOXD_LISTEN="+open+"/s"), "others may write to the socket's folder"},
		{"a key that is none", start(good, 0o600, "SANDBOXD_TCP_CERT_FILE="+tokens, "SANDBOXD_TCP_KEY_FILE="+tokens), "cannot use tcp.certFile and tcp.keyFile"},
	} {
		if !strings.Contains(c.says, c.want) {
			t.Errorf("%s: %s, want %s", c.name, c.says, c.want)
		}
	}
}
