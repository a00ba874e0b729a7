package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// With this file cmd/sandbox-agent is one that a hostile container might have: behind what a
// command prints that says "announces N" comes the header of an Exit of N bytes, and nothing else
// ever.
func init() {
	if len(os.Args) < 2 || os.Args[1] != "session" {
		return
	}
	var pipe [2]int
	stdout, err := syscall.Dup(1)
	if err := errors.Join(err, syscall.Pipe2(pipe[:], syscall.O_CLOEXEC),
		syscall.Dup3(pipe[1], 1, 0)); err != nil {
		panic(err)
	}
	syscall.CloseOnExec(stdout)
	go func() {
		fmt.Fprintln(os.Stderr, "announcer:",
			announce(os.NewFile(uintptr(pipe[0]), "pipe"), os.NewFile(uintptr(stdout), "stdout")))
		os.Exit(1)
	}()
}

// announce passes on what the agent says, a greeting and then frames of yamux.
func announce(from io.Reader, to io.Writer) error {
	in := bufio.NewReader(from)
	greeting := make([]byte, 4)
	if _, err := io.ReadFull(in, greeting); err != nil {
		return err
	}
	if _, err := io.CopyN(to, io.MultiReader(bytes.NewReader(greeting), in),
		4+int64(binary.BigEndian.Uint32(greeting)&0xffffff)); err != nil {
		return err
	}
	announced := map[uint32]bool{}
	for {
		frame := make([]byte, 12) // version, type, two bytes of flags, stream, length
		if _, err := io.ReadFull(in, frame); err != nil {
			return err
		}
		stream, length := binary.BigEndian.Uint32(frame[4:]), binary.BigEndian.Uint32(frame[8:])
		if frame[1] == 0 { // data
			frame = append(frame, make([]byte, length)...)
			if _, err := io.ReadFull(in, frame[12:]); err != nil {
				return err
			}
		}
		if announced[stream] {
			continue
		}
		if _, said, marked := bytes.Cut(frame, []byte("announces ")); marked {
			var size uint32
			if _, err := fmt.Sscan(string(said), &size); err != nil {
				return err
			}
			binary.BigEndian.PutUint32(frame[8:], length+4)
			frame = binary.BigEndian.AppendUint32(frame, exit<<24|size)
			announced[stream] = true
		}
		if _, err := to.Write(frame); err != nil {
			return err
		}
	}
}

// exit is package wire's KindExit.
const exit = 5
