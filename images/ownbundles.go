package images

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ownBundles begins the names of the files of OwnBundle, and maxOwnBundles is how many are kept:
// callers decide how many different ones there are, and each has some 200 KB.
const ownBundles, maxOwnBundles = "own-certificates", 256

// OwnBundle is Bundle for containers that trust what most do not. It remembers the file for the next
// call. Of such files only those that were asked for last are kept; a container keeps the one that
// it has mounted.
func (o *Overrides) OwnBundle(more []*x509.Certificate) (source, target string, _ error) {
	hash := sha256.New()
	for _, c := range more {
		hash.Write(c.Raw)
	}
	sum := [sha256.Size]byte(hash.Sum(nil))
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.own[sum]
	if now := time.Now(); ok && os.Chtimes(known, now, now) == nil {
		return known, o.bundleAt(), nil
	}
	source, err := o.store(ownBundles, o.bundle(more))
	if err != nil {
		return "", "", err
	}
	now := time.Now()
	if err := errors.Join(os.Chtimes(source, now, now), o.dropOwnBundles()); err != nil {
		return "", "", fmt.Errorf("cannot keep certificates of containers: %w", err)
	}
	if len(o.own) >= maxOwnBundles {
		clear(o.own)
	}
	o.own[sum] = source
	return source, o.bundleAt(), nil
}

// dropOwnBundles removes the oldest files of OwnBundle beyond maxOwnBundles.
func (o *Overrides) dropOwnBundles() error {
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), ownBundles+"-")
	})
	if len(entries) <= maxOwnBundles {
		return nil
	}
	asked := map[string]time.Time{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // otherwise it is gone
			asked[e.Name()] = info.ModTime()
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Or(asked[a.Name()].Compare(asked[b.Name()]), cmp.Compare(a.Name(), b.Name()))
	})
	for _, e := range entries[:len(entries)-maxOwnBundles] {
		err := os.Remove(filepath.Join(o.dir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
