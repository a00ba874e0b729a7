//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// apart is how long both ends rest between two bytes, as they do when a command has just started.
const apart = 2 * time.Millisecond

// pipe sends bytes to another process, which sends them back, and prints half of what each took.
func pipe(n int) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.Command(self, "echo")
	to, err := other.StdinPipe()
	if err != nil {
		return err
	}
	from, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close(), other.Wait()) }()
	buffer := make([]byte, 1)
	for i := range warmUp + n {
		time.Sleep(apart)
		begun := time.Now()
		if _, err := to.Write(buffer); err != nil {
			return err
		}
		if _, err := io.ReadFull(from, buffer); err != nil {
			return err
		}
		took := time.Since(begun) / 2
		if i >= warmUp {
			fmt.Println(took.Nanoseconds())
		}
	}
	return nil
}

// echo is the other process.
func echo() error {
	_, err := io.Copy(struct{ io.Writer }{os.Stdout}, struct{ io.Reader }{os.Stdin})
	return err
}
