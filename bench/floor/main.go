//go:build linux

// Command floor measures what starting a program costs where it runs: it starts a program, `true`
// unless another one is named, by vfork and exec, waits for it, and prints how long that took. The
// benchmarks run it inside a sandbox's container; nothing that runs commands there can be faster.
//
//	floor serial N PROGRAM ARG...  prints N durations in nanoseconds, one a line
//	floor rested N PROGRAM ARG...  the same, with a rest before each
//	floor parallel N    starts N at once and prints how long all took, in nanoseconds
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// rest is as long as that of the calls with which it is compared.
const rest = 70 * time.Millisecond

// warmUp is how many starts go before the first that counts.
const warmUp = 3

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: floor serial|rested N [PROGRAM ARG...] | parallel N")
	}
	n := 1
	if len(args) > 1 {
		var err error
		if n, err = strconv.Atoi(args[1]); err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of starts", args[1])
		}
	}
	program := []string{"true"}
	if len(args) > 2 {
		program = args[2:]
	}
	s, err := newStarter(program)
	if err != nil {
		return err
	}
	for range warmUp {
		if err := s.start(); err != nil {
			return err
		}
	}
	switch args[0] {
	case "serial":
		return s.serial(n, 0)
	case "rested":
		return s.serial(n, rest)
	case "parallel":
		return s.parallel(n)
	default:
		return fmt.Errorf("unknown mode %q", args[0])
	}
}

// starter starts one program again and again, with /dev/null for its three descriptors.
type starter struct {
	path string
	argv []string
	attr *syscall.ProcAttr
}

func newStarter(argv []string) (starter, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return starter{}, err
	}
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return starter{}, fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	fd := uintptr(null)
	return starter{path: path, argv: argv, attr: &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{fd, fd, fd}}}, nil
}

// start is one vfork, exec and wait.
func (s starter) start() error {
	pid, err := syscall.ForkExec(s.path, s.argv, s.attr)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", s.path, err)
	}
	var status syscall.WaitStatus
	for {
		_, err = syscall.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil || !status.Exited() || status.ExitStatus() != 0 {
		return fmt.Errorf("%s did not end well: status %v, %v", s.path, status, err)
	}
	return nil
}

func (s starter) serial(n int, rest time.Duration) error {
	took := make([]time.Duration, n)
	for i := range took {
		time.Sleep(rest)
		begun := time.Now()
		if err := s.start(); err != nil {
			return err
		}
		took[i] = time.Since(begun)
	}
	out := bufio.NewWriter(os.Stdout)
	for _, d := range took {
		fmt.Fprintln(out, d.Nanoseconds())
	}
	return out.Flush()
}

func (s starter) parallel(n int) error {
	faults := make([]error, n)
	var work sync.WaitGroup
	begun := time.Now()
	for i := range faults {
		work.Go(func() { faults[i] = s.start() })
	}
	work.Wait()
	took := time.Since(begun)
	if err := errors.Join(faults...); err != nil {
		return err
	}
	fmt.Println(took.Nanoseconds())
	return nil
}
