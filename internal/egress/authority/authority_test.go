package authority

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/vault"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// disk is where an authority is.
type disk struct {
	t   testing.TB
	dir string
}

func newDisk(t testing.TB) disk { return disk{t, filepath.Join(t.TempDir(), "authority")} }

func (d disk) vaultKey() string { return filepath.Join(filepath.Dir(d.dir), "key") }
func (d disk) file() string     { return filepath.Join(d.dir, keyName) }

func (d disk) open() *Authority {
	d.t.Helper()
	a, err := Open(d.dir, vault.New(d.vaultKey()))
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

func issuer(t testing.TB, a *Authority, hosts ...string) *Issuer {
	t.Helper()
	i, err := a.For(hosts)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func leaf(t testing.TB, i *Issuer, host string) *tls.Certificate {
	t.Helper()
	l, err := i.Leaf(host)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestASetOfHostsHasOneCertificateAlsoAfterARestart(t *testing.T) {
	d := newDisk(t)
	a := d.open()
	first := issuer(t, a, "api.github.com", "*.example.com")
	if again := issuer(t, a, "*.example.com", "api.github.com", "*.example.com"); again != first {
		t.Error("the same set has another issuer")
	}
	clear(a.issuers) // as if others had driven it out
	for name, again := range map[string]*Issuer{
		"made again":      issuer(t, a, "api.github.com", "*.example.com"),
		"after a restart": issuer(t, d.open(), "*.example.com", "api.github.com"),
	} {
		if !bytes.Equal(again.Certificate().Raw, first.Certificate().Raw) {
			t.Errorf("%s: another certificate", name)
		}
		verifies(t, first, leaf(t, again, "api.github.com"), "api.github.com")
	}
	other := issuer(t, a, "api.github.com").Certificate()
	if other.Subject.String() == first.Certificate().Subject.String() || other.SerialNumber.Cmp(first.Certificate().SerialNumber) == 0 {
		t.Error("two sets have one name or number")
	}
	elsewhere := issuer(t, newDisk(t).open(), "api.github.com").Certificate()
	if elsewhere.SerialNumber.Cmp(other.SerialNumber) == 0 || bytes.Equal(elsewhere.SubjectKeyId, other.SubjectKeyId) {
		t.Error("two services have one number or key")
	}
}

func TestHostsThatAreNone(t *testing.T) {
	a := newDisk(t).open()
	for _, hosts := range [][]string{
		nil, {}, {""}, {"*"}, {"api.github.com", "*"}, {"API.github.com"}, {"api.github.com."}, {".github.com"}, {"*.com"},
		{"127.0.0.1"}, {"api.github.com example.com"}, {"localhost"},
	} {
		if i, err := a.For(hosts); err == nil || !strings.Contains(err.Error(), "cannot issue certificates") {
			t.Errorf("%q: %v, %v", hosts, i, err)
		}
	}
}

func TestTheKeyIsMadeWhenItIsNeededAndSealed(t *testing.T) {
	d := newDisk(t)
	a := d.open()
	for _, name := range []string{d.file(), d.vaultKey()} {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	issuer(t, a, "api.github.com")
	box, err := os.ReadFile(d.file())
	if err != nil {
		t.Fatal(err)
	}
	secret, err := a.own.key.Bytes()
	if err != nil || bytes.Contains(box, secret) || bytes.Contains(box, []byte("madeAt")) {
		t.Errorf("%q, %v", box, err)
	}
	for name, mode := range map[string]os.FileMode{d.file(): 0o600, d.dir: 0o700 | os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := vault.New(filepath.Join(t.TempDir(), "key")).Open(box, bound); !errors.Is(err, vault.ErrNoKey) {
		t.Errorf("%v", err)
	}
}

// Without the vault's key there are no certificates, and no other key is made: a person decides. One
// that is put back is used.
func TestAVaultWithoutItsKey(t *testing.T) {
	d := newDisk(t)
	first := issuer(t, d.open(), "api.github.com")
	box, err := os.ReadFile(d.file())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.vaultKey(), d.vaultKey()+".aside"); err != nil {
		t.Fatal(err)
	}
	a := d.open()
	refuses := func(why string) {
		t.Helper()
		_, err := a.For([]string{"api.github.com"})
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "remove the file authority/key") ||
			strings.Contains(err.Error(), filepath.Dir(d.dir)) {
			t.Errorf("%v, want %s", err, why)
		}
		if now, err := os.ReadFile(d.file()); err != nil || !bytes.Equal(now, box) {
			t.Errorf("the key was changed: %v", err)
		}
	}
	refuses("the key is gone")
	if err := os.WriteFile(d.vaultKey(), make([]byte, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses("was sealed with another key")
	if err := os.Rename(d.vaultKey()+".aside", d.vaultKey()); err != nil {
		t.Fatal(err)
	}
	if again := issuer(t, a, "api.github.com"); !bytes.Equal(again.Certificate().Raw, first.Certificate().Raw) {
		t.Error("another certificate")
	}
	if err := os.Remove(d.file()); err != nil {
		t.Fatal(err)
	}
	if again := issuer(t, d.open(), "api.github.com"); bytes.Equal(again.Certificate().SubjectKeyId, first.Certificate().SubjectKeyId) {
		t.Error("it is the key that was removed")
	}
}

// A key that is cut at any byte is refused, and the service starts.
func TestAKeyThatWasCut(t *testing.T) {
	d := newDisk(t)
	issuer(t, d.open(), "api.github.com")
	box, err := os.ReadFile(d.file())
	if err != nil {
		t.Fatal(err)
	}
	for length := range box {
		if err := os.WriteFile(d.file(), box[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.open().For([]string{"api.github.com"}); err == nil || !strings.Contains(err.Error(), "it is damaged") {
			t.Errorf("cut to %d bytes: %v", length, err)
		}
	}
}

func TestAKeyThatIsNone(t *testing.T) {
	d := newDisk(t)
	a := d.open()
	issuer(t, a, "api.github.com")
	for text, says := range map[string]string{
		`{"version":2}`:            "version 2 is not known",
		`{"version":1}`:            "cannot be opened",
		`{"version":1,"key":"AA"}`: "cannot be opened",
		`x`:                        "cannot be opened",
	} {
		box, err := a.vault.Seal([]byte(text), bound)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.file(), box, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.open().For([]string{"api.github.com"}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestADiskThatIsGone(t *testing.T) {
	d := newDisk(t)
	a := d.open()
	if err := os.Remove(d.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := a.For([]string{"api.github.com"}); err == nil || !strings.Contains(err.Error(), "cannot keep") || strings.Contains(err.Error(), d.dir) {
		t.Errorf("%v", err)
	}
	if a.own != nil {
		t.Error("it goes on with a key that the next service does not have")
	}
	if _, err := Open(filepath.Join("/proc", "none"), a.vault); err == nil {
		t.Error("it is open without a directory")
	}
}

// A certificate of the authority that a container trusts is good for five years more, and the next
// one has the same name and key, so that leaves are good with either.
func TestCertificatesBeginAnewBeforeTheyEnd(t *testing.T) {
	d := newDisk(t)
	synctest.Test(t, func(t *testing.T) {
		first := issuer(t, d.open(), "api.github.com")
		waittest.Pass(lifetime/2 - day) // less than that after the key was made
		a := d.open()
		if again := issuer(t, a, "api.github.com"); !bytes.Equal(again.Certificate().Raw, first.Certificate().Raw) {
			t.Error("it begins too early")
		}
		waittest.Pass(day)
		next := issuer(t, a, "api.github.com")
		if next.Certificate().NotAfter.Sub(first.Certificate().NotAfter) != lifetime/2 ||
			next.Certificate().SerialNumber.Cmp(first.Certificate().SerialNumber) == 0 {
			t.Errorf("it ends at %v", next.Certificate().NotAfter)
		}
		if again := issuer(t, d.open(), "api.github.com"); !bytes.Equal(again.Certificate().Raw, next.Certificate().Raw) {
			t.Error("the next service has another certificate")
		}
		verifies(t, first, leaf(t, next, "api.github.com"), "api.github.com")
		verifies(t, next, leaf(t, next, "api.github.com"), "api.github.com")
	})
}

func TestIssuersAreBounded(t *testing.T) {
	a := newDisk(t).open()
	first := issuer(t, a, "h0.example.com").Certificate()
	for n := range maxIssuers + 20 {
		issuer(t, a, fmt.Sprintf("h%d.example.com", n))
	}
	if len(a.issuers) != maxIssuers {
		t.Errorf("%d are remembered", len(a.issuers))
	}
	if again := issuer(t, a, "h0.example.com").Certificate(); !bytes.Equal(again.Raw, first.Raw) {
		t.Error("another certificate")
	}
}

func TestManyAtOnceHaveTheSame(t *testing.T) {
	a := newDisk(t).open()
	var all sync.WaitGroup
	issuers, leaves := make([]*Issuer, 16), make([]*tls.Certificate, 16)
	for n := range issuers {
		all.Go(func() {
			i, err := a.For([]string{"*.example.com", "api.github.com"})
			if err != nil {
				t.Error(err)
				return
			}
			own := fmt.Sprintf("h%d.example.com", n)
			_, ofOwn := i.Leaf(own)
			_, forOwn := a.For([]string{own})
			issuers[n] = i
			leaves[n], err = i.Leaf("api.github.com")
			if err := errors.Join(ofOwn, forOwn, err); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for n := range issuers {
		if issuers[n] != issuers[0] || leaves[n] != leaves[0] {
			t.Errorf("%d has another", n)
		}
	}
}
