package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// data is the service's dataDir, held by one service at a time.
type data struct {
	lock     *os.File
	instance string
}

// openData makes dataDir if need be and takes it for this service, until close or its end.
func openData(dir string) (*data, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("cannot open dataDir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open dataDir: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := lock.Read(holder)
		return nil, errors.Join(
			fmt.Errorf("cannot use dataDir %s: the service with pid %s uses it", dir, strings.TrimSpace(string(holder[:n]))), lock.Close())
	}
	d := &data{lock: lock}
	err = errors.Join(lock.Truncate(0), writePid(lock))
	if err == nil {
		d.instance, err = readInstance(filepath.Join(dir, "instance"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open dataDir: %w", err), lock.Close())
	}
	return d, nil
}

func writePid(lock *os.File) error {
	_, err := fmt.Fprintf(lock, "%d\n", os.Getpid())
	return err
}

// readInstance returns the id by which this dataDir's containers are known, made once.
func readInstance(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err == nil && len(strings.TrimSpace(string(text))) == 16 {
		return strings.TrimSpace(string(text)), nil
	}
	if err == nil {
		return "", fmt.Errorf("%s is damaged: it should hold 16 characters; containers of this service are known by it (docker ps --filter label=run.daycare.sandbox.instance)", name)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return "", err
	}
	instance := hex.EncodeToString(id)
	temporary := name + ".new"
	if err := os.WriteFile(temporary, []byte(instance+"\n"), 0o600); err != nil {
		return "", err
	}
	return instance, os.Rename(temporary, name)
}

func (d *data) close() { _ = d.lock.Close() }
