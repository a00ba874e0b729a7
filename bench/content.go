package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// makeLarge makes a file that has no holes and cannot be compressed, and waits until it is on the
// disk.
func makeLarge(ctx context.Context, path string, size int64) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	random := rand.NewChaCha8([32]byte{})
	for left := size; left > 0; left -= blockBytes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := io.CopyN(file, random, min(left, blockBytes)); err != nil {
			return fmt.Errorf("cannot make a file of %s: %w", mib(size), err)
		}
	}
	return file.Sync()
}

// sameContent returns an error if two files differ.
func sameContent(ctx context.Context, a, b string) error {
	one, err := os.Open(a)
	if err != nil {
		return err
	}
	defer one.Close()
	other, err := os.Open(b)
	if err != nil {
		return err
	}
	defer other.Close()
	left, right := make([]byte, blockBytes), make([]byte, blockBytes)
	for ctx.Err() == nil {
		n, err1 := io.ReadFull(one, left)
		m, err2 := io.ReadFull(other, right)
		if err := errors.Join(unexpected(err1), unexpected(err2)); err != nil {
			return err
		}
		if !bytes.Equal(left[:n], right[:m]) {
			return errors.New("what has arrived is not what was sent")
		}
		if n < blockBytes {
			return nil
		}
	}
	return ctx.Err()
}

// unexpected returns an error of io.ReadFull, or nil if it is only the end of a file.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
