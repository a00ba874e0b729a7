package vault

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const text = "hunter2-hunter2"

// sealed seals text in a new vault.
func sealed(t *testing.T) (v *Vault, box []byte) {
	t.Helper()
	v = New(filepath.Join(t.TempDir(), "key"))
	box, err := v.Seal([]byte(text), "a")
	if err != nil {
		t.Fatal(err)
	}
	return v, box
}

func TestOnlyWhatItBelongsToOpensIt(t *testing.T) {
	v, box := sealed(t)
	if got, err := v.Open(box, "a"); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
	for _, bound := range []string{"", "b", "a ", "aa"} {
		if got, err := v.Open(box, bound); !errors.Is(err, ErrDamaged) || got != nil {
			t.Errorf("%q opened %q, %v", bound, got, err)
		}
	}
	again, err := v.Seal([]byte(text), "a")
	if err != nil || bytes.Equal(again, box) || bytes.Contains(box, []byte(text)) {
		t.Errorf("%q, then %q, %v", box, again, err)
	}
	if info, err := os.Stat(v.keyFile); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}
}

// What is sealed and its key, cut at any byte or with a bit changed, open nothing; a key that is no
// key seals nothing.
func TestDamageIsTold(t *testing.T) {
	v, box := sealed(t)
	for n := range box {
		changed := bytes.Clone(box)
		changed[n] ^= 1
		for _, damaged := range [][]byte{box[:n], changed} {
			if got, err := v.Open(damaged, "a"); !errors.Is(err, ErrDamaged) {
				t.Errorf("damaged at byte %d: %q, %v", n, got, err)
			}
		}
	}
	key, err := os.ReadFile(v.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for length := range key {
		if err := os.WriteFile(v.keyFile, key[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		_, sealErr := v.Seal([]byte(text), "a")
		_, openErr := v.Open(box, "a")
		for _, err := range []error{sealErr, openErr} {
			if err == nil || !strings.Contains(err.Error(), "it is damaged") || errors.Is(err, ErrDamaged) ||
				strings.Contains(err.Error(), v.keyFile) {
				t.Errorf("key cut to %d bytes: %v", length, err)
			}
		}
	}
}

func TestAKeyThatIsPutBackIsUsed(t *testing.T) {
	v, box := sealed(t)
	aside := v.keyFile + ".aside"
	if err := os.Rename(v.keyFile, aside); err != nil {
		t.Fatal(err)
	}
	if got, err := v.Open(box, "a"); !errors.Is(err, ErrNoKey) {
		t.Errorf("without the key: %q, %v", got, err)
	}
	other, err := v.Seal([]byte(text), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Open(box, "a"); !errors.Is(err, ErrDamaged) {
		t.Errorf("with another key: %q, %v", got, err)
	}
	if err := os.Rename(aside, v.keyFile); err != nil {
		t.Fatal(err)
	}
	if got, err := v.Open(box, "a"); err != nil || string(got) != text {
		t.Errorf("with the key again: %q, %v", got, err)
	}
	if got, err := v.Open(other, "a"); !errors.Is(err, ErrDamaged) {
		t.Errorf("what was sealed meanwhile: %q, %v", got, err)
	}
}

func TestAKeyThatCannotBeMadeIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	_, err := New(filepath.Join(dir, "key")).Seal([]byte(text), "a")
	if err == nil || !strings.Contains(err.Error(), "cannot make the key") || strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}

// One key is made, however many ask at once: nobody seals with a key that another call replaces.
func TestOneKeyIsMade(t *testing.T) {
	v := New(filepath.Join(t.TempDir(), "key"))
	var all sync.WaitGroup
	boxes := make([][]byte, 16)
	for i := range boxes {
		all.Go(func() {
			var err error
			if boxes[i], err = v.Seal([]byte(text), "a"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, box := range boxes {
		if got, err := v.Open(box, "a"); err != nil || string(got) != text {
			t.Errorf("%d: %q, %v", i, got, err)
		}
	}
}

// The form is a nonce of 12 bytes and what AES-256-GCM makes of the text, as services have written
// it since there are secrets of processes.
func TestWhatWasSealedBeforeOpens(t *testing.T) {
	v := New(filepath.Join(t.TempDir(), "key"))
	key, nonce := bytes.Repeat([]byte{7}, 32), []byte("twelve bytes")
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(v.keyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	box := gcm.Seal(bytes.Clone(nonce), nonce, []byte(text), []byte("p-a"))
	if got, err := v.Open(box, "p-a"); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
}
