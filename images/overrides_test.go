package images

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func authority(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A bundle has the image's certificates and the others, each once, and another content is another file.
func TestBundle(t *testing.T) {
	dir := t.TempDir()
	images, house, other := authority(t, "image"), authority(t, "house"), authority(t, "other")
	made := func(at string, bundle []byte, more ...[]byte) (source, target, text string) {
		t.Helper()
		list, err := ParseCertificates(bytes.Join(more, []byte("# a comment\n")))
		if err != nil {
			t.Fatal(err)
		}
		source, target, err = NewOverrides(dir, Original{Bundle: bundle, BundleAt: at}).Bundle(list)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		return source, target, string(content)
	}
	one, at, text := made("/etc/ssl/cert.pem", bytes.TrimSpace(images), house, images, house)
	if at != "/etc/ssl/cert.pem" || text != string(images)+string(house) {
		t.Errorf("%s: %q", at, text)
	}
	if again, _, _ := made("/etc/ssl/cert.pem", bytes.TrimSpace(images), house); again != one {
		t.Errorf("%s and %s have the same content", one, again)
	}
	if another, _, text := made("/etc/ssl/cert.pem", images, house, other); another == one || strings.Count(text, "BEGIN") != 3 {
		t.Errorf("%s: %q", another, text)
	}
	if _, at, text := made("", nil, house); at != bundles[0] || text != string(house) {
		t.Errorf("%s: %q", at, text)
	}
}

// ownBundle is the file of a call's own bundle, with what is in it.
func ownBundle(t *testing.T, o *Overrides, more ...[]byte) (source, text string) {
	t.Helper()
	list, err := ParseCertificates(bytes.Join(more, nil))
	if err != nil {
		t.Fatal(err)
	}
	source, target, err := o.OwnBundle(list)
	if err != nil || target != "/etc/ssl/cert.pem" {
		t.Fatalf("%q, %v", target, err)
	}
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	return source, string(content)
}

// A bundle of few containers has what it is asked for and the image's, in a file that is written once and comes back when
// it is gone.
func TestOwnBundle(t *testing.T) {
	images, house, one, other := authority(t, "image"), authority(t, "house"), authority(t, "one"), authority(t, "other")
	original := Original{Bundle: images, BundleAt: "/etc/ssl/cert.pem"}
	o := NewOverrides(t.TempDir(), original)
	source, text := ownBundle(t, o, house, one)
	if text != string(images)+string(house)+string(one) {
		t.Errorf("%q", text)
	}
	before, err := os.Stat(source)
	if err != nil {
		t.Fatal(err)
	}
	for name, again := range map[string]*Overrides{"remembered": o, "found": NewOverrides(filepath.Dir(source), original)} {
		if same, _ := ownBundle(t, again, house, one); same != source {
			t.Errorf("%s: %s, then %s", name, source, same)
		}
	}
	if after, err := os.Stat(source); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was written again: %v", err)
	}
	if another, text := ownBundle(t, o, house, other); another == source || strings.Contains(text, string(one)) {
		t.Errorf("of another authority: %s, %q", another, text)
	}
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if same, again := ownBundle(t, o, house, one); same != source || again != text {
		t.Errorf("removed, it is %s, %q", same, again)
	}
}

// However many bundles calls ask for, those that were asked for last stay, and what is no such bundle.
func TestOwnBundlesAreBounded(t *testing.T) {
	dir := t.TempDir()
	original := Original{BundleAt: "/etc/ssl/cert.pem"}
	o := NewOverrides(dir, original)
	house, used := authority(t, "house"), authority(t, "used")
	list, err := ParseCertificates(house)
	if err != nil {
		t.Fatal(err)
	}
	platforms, _, err := o.Bundle(list)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := ownBundle(t, o, house, used)
	last := ""
	for i := range maxOwnBundles + 3 {
		if i == maxOwnBundles/2 { // as after a restart, and when an image is found again
			o = NewOverrides(dir, original)
		}
		last, _ = ownBundle(t, o, house, authority(t, fmt.Sprint(i)))
		if again, _ := ownBundle(t, o, house, used); again != first {
			t.Fatalf("%s, then %s", first, again)
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, ownBundles+"-*"))
	if err != nil || len(there) != maxOwnBundles || !slices.Contains(there, last) || !slices.Contains(there, first) {
		t.Errorf("%d, %v", len(there), err)
	}
	if _, err := os.Stat(platforms); err != nil {
		t.Error(err)
	}
}

func TestCertificatesThatAreRefused(t *testing.T) {
	good := authority(t, "a")
	for name, c := range map[string]struct{ text, message string }{
		"nothing":               {"", "no certificate"},
		"text":                  {"hello", "no certificate"},
		"a key":                 {string(good) + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", `block 2 is a "PRIVATE KEY"`},
		"cut short":             {string(good) + string(good[:100]), "block 2 is damaged"},
		"no certificate inside": {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1: "},
	} {
		if _, err := ParseCertificates([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A user who has a name in the image keeps it; one who has none gets one, before all others.
func TestAccounts(t *testing.T) {
	o := NewOverrides(t.TempDir(), Original{
		Passwd: []byte("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home:/bin/bash\n"), Group: []byte("root:x:0:\nuser:x:1000:\n"),
	})
	if a, err := o.Accounts(1000, 1000); err != nil || a != (Accounts{}) {
		t.Errorf("%+v, %v", a, err)
	}
	a, err := o.Accounts(200_000, 200_001)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		a.Passwd: "user:x:200000:200001::/home:/bin/bash\nroot:", a.Group: "user:x:200001:\nroot:",
	} {
		if text, err := os.ReadFile(name); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if again, err := o.Accounts(200_000, 200_001); err != nil || again != a {
		t.Errorf("%+v, %v", again, err)
	}
	bare, err := NewOverrides(t.TempDir(), Original{}).Accounts(7, 7)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(bare.Passwd); err != nil || string(text) != "user:x:7:7::/home:/bin/sh\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// The files that the service keeps of images may be cut anywhere: they are written again, and read from the image again.
func TestFilesThatWereCut(t *testing.T) {
	dir := t.TempDir()
	original := Original{Passwd: []byte("root:x:0:0::/:/bin/bash\n"), BundleAt: "/etc/ssl/cert.pem"}
	made, err := NewOverrides(dir, original).Accounts(1000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(made.Passwd)
	if err != nil {
		t.Fatal(err)
	}
	for length := range whole {
		if err := os.Truncate(made.Passwd, int64(length)); err != nil {
			t.Fatal(err)
		}
		if _, err := NewOverrides(dir, original).Accounts(1000, 1000); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(made.Passwd); err != nil || !bytes.Equal(got, whole) {
			t.Fatalf("cut to %d bytes: %q, %v", length, got, err)
		}
	}
	text, err := json.Marshal(versioned{Version: originalVersion, Original: original})
	if err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "image-x.json")
	for length := range text {
		if err := os.WriteFile(record, text[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readOriginal(record); err == nil {
			t.Fatalf("cut to %d bytes: %+v", length, got)
		}
	}
}
