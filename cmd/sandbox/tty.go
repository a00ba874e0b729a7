package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/moby/term"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// terminalOf returns stdin if it is a terminal.
func terminalOf(in io.Reader) (*os.File, error) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(file.Fd()) {
		return nil, errors.New(
			"-t needs a terminal on stdin, and there is none: leave it out, or use -i alone to pass stdin on")
	}
	return file, nil
}

// askForTerminal makes an exec ask for a terminal like the one that we run at.
func askForTerminal(e *types.Exec, file *os.File) {
	e.TTY = terminalSize(file).Terminal()
	if name := os.Getenv("TERM"); name != "" && e.Env["TERM"] == "" {
		e.Env["TERM"] = name
	}
}

// sitDown connects our terminal to a command, whose own has the same size and has handled what is
// printed. Keys that are passed on are not handled here; if none are, those for signals work as
// ever. leave, which may be called twice, restores our terminal.
func sitDown(ctx context.Context, file *os.File,
	streams *client.Streams) (leave func(), err error) {
	before, err := term.SaveState(file.Fd())
	switch {
	case err != nil:
	case streams.Stdin != nil:
		_, err = term.MakeRaw(file.Fd())
	default:
		err = printAsIs(file)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot set up the terminal: %w", err)
	}
	// A stdout that nobody reads any more would end us before the terminal is restored.
	signal.Ignore(unix.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	streams.Resizes = resizes(ctx, file)
	if streams.Stdin != nil {
		streams.Stdin = keyboard{ctx, file}
	}
	return sync.OnceFunc(func() {
		cancel()
		_ = term.RestoreTerminal(file.Fd(), before)
	}), nil
}

// maxTyped is how many bytes of a line a terminal passes on; the kernel drops the rest.
const maxTyped = 4095

// typedValue asks a person for a value at a terminal, which does not show what is typed.
func typedValue(ctx context.Context, file *os.File, prompt string,
	to io.Writer) (*string, error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop() // after the terminal is restored
	before, err := term.SaveState(file.Fd())
	if err == nil {
		err = term.DisableEcho(file.Fd(), before)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot set up the terminal: %w", err)
	}
	defer func() { _ = term.RestoreTerminal(file.Fd(), before) }()
	fmt.Fprint(to, prompt)
	defer fmt.Fprintln(to) // in place of the one that was not shown
	came := make(chan string, 1)
	go func() { // which a signal leaves reading, until the program ends
		line, _ := bufio.NewReader(lines{file}).ReadString('\n')
		came <- line
	}()
	select {
	case line := <-came:
		if len(line) > maxTyped { // with its end
			return nil, fmt.Errorf(
				"a terminal passes on %d bytes of a line, and the value may be longer: pass it on stdin or with --value-file",
				maxTyped)
		}
		return readValue(strings.NewReader(line))
	case <-ctx.Done():
		return nil, exitCode(128 + int(unix.SIGINT))
	}
}

// printAsIs keeps a terminal from changing what is printed.
func printAsIs(file *os.File) error {
	mode, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	mode.Oflag &^= unix.OPOST
	return unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, mode)
}

// input returns what to pass on of stdin: nothing if it is /dev/null, or not open for reading,
// which is how nohup leaves it. Then the command reads /dev/null, too, and not a pipe, which some
// programs would search. A terminal that is gone has ended.
func input(stdin io.Reader) io.Reader {
	file, is := stdin.(*os.File)
	if !is {
		return stdin
	}
	if mode, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0); err == nil &&
		mode&unix.O_ACCMODE == unix.O_WRONLY {
		return nil
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err == nil &&
		stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == devNull {
		return nil
	}
	if term.IsTerminal(file.Fd()) {
		return lines{file}
	}
	return file
}

// devNull is the device number of /dev/null.
var devNull = unix.Mkdev(1, 3)

// pipedInput is input for a command that nobody types to: of a terminal, nothing is passed on.
func pipedInput(stdin io.Reader) io.Reader {
	piped := input(stdin)
	if _, is := piped.(lines); is {
		return nil
	}
	return piped
}

// lines reads a terminal that has not been made raw. The kernel says EIO of one that is gone.
type lines struct{ file *os.File }

func (l lines) Read(p []byte) (int, error) {
	n, err := l.file.Read(p)
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// terminalSize returns a size that is never 0, even if the terminal does not know its own.
func terminalSize(file *os.File) client.Size {
	size := client.Size{Rows: 24, Cols: 80}
	if known, err := term.GetWinsize(file.Fd()); err == nil && known.Height > 0 && known.Width > 0 {
		const limit = 10_000 // that the service takes
		size = client.Size{Rows: min(int(known.Height), limit), Cols: min(int(known.Width), limit)}
	}
	return size
}

// resizes returns a channel with the size of a terminal and each new size, until ctx ends.
func resizes(ctx context.Context, file *os.File) <-chan client.Size {
	came := make(chan os.Signal, 1)
	signal.Notify(came, unix.SIGWINCH)
	sizes := make(chan client.Size)
	go func() {
		defer signal.Stop(came)
		for {
			select {
			case sizes <- terminalSize(file):
			case <-ctx.Done():
				return
			}
			select {
			case <-came:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes
}

// keyboard reads a terminal. A terminal that is gone has no more keys, but that is not the end of
// input, which a person types. SIGHUP comes then, and decides what happens.
type keyboard struct {
	ctx  context.Context
	file *os.File
}

func (k keyboard) Read(p []byte) (int, error) {
	n, err := k.file.Read(p)
	if err != nil {
		<-k.ctx.Done()
	}
	return n, err
}
