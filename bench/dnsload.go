package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// dnsServer is a process that answers DNS questions.
type dnsServer struct {
	addr netip.AddrPort
	pid  int
}

// load is the result of one run of dnsperf.
type load struct {
	// perSecond is how many questions were answered per second, and perCPU how many per second of
	// the server's processor time.
	perSecond, perCPU float64
	// latency has the latency of each answer, if latencies were asked for.
	latency sample
}

const (
	// dnsClients is how many sockets dnsperf asks from, and dnsOutstanding how many questions may
	// be under way.
	dnsClients, dnsOutstanding = 4, 100
	// leastAnswered is the share of questions that must get the expected answer: UDP may lose some.
	leastAnswered = 0.999
)

// questions is a file for dnsperf, with the code that the answers must have.
type questions struct {
	file, code string
}

func writeQuestions(path, code string, names []string) (questions, error) {
	var b strings.Builder
	for _, name := range names {
		b.WriteString(name + " A\n")
	}
	return questions{path, code}, os.WriteFile(path, []byte(b.String()), 0o600)
}

// ask loads a server for some seconds. If rate is 0 it asks as fast as the server answers.
// Otherwise it asks at that rate per second and keeps each answer's latency.
func (l *lab) ask(ctx context.Context, server dnsServer, q questions, seconds int, rate float64) (load, error) {
	args := []string{
		"-s", server.addr.Addr().String(), "-p", fmt.Sprint(server.addr.Port()), "-a", dnsAsker.String(), "-d", q.file,
		"-l", fmt.Sprint(seconds), "-c", fmt.Sprint(dnsClients), "-q", fmt.Sprint(dnsOutstanding), "-T", "1",
	}
	program := "dnsperf"
	if rate > 0 {
		// Its two threads spin. If each has a core, a server waits for one, which would not be the
		// server's own latency.
		args = append([]string{"-n", "19", program}, append(args, "-v", "-Q", fmt.Sprintf("%.0f", rate))...)
		program = "nice"
	}
	// The output goes to a file: a pipe would need a reader, which would use a processor.
	path := filepath.Join(l.dir, "dnsperf")
	out, err := os.Create(path)
	if err != nil {
		return load{}, err
	}
	defer out.Close()
	dnsperf := exec.CommandContext(ctx, program, args...)
	dnsperf.Stdout, dnsperf.Stderr = out, out
	before, err := processorTime(server.pid)
	if err != nil {
		return load{}, err
	}
	runErr := dnsperf.Run()
	after, err := processorTime(server.pid)
	if err != nil {
		return load{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return load{}, err
	}
	if runErr != nil {
		return load{}, fmt.Errorf("dnsperf: %w\n%.1000s", runErr, text)
	}
	return readLoad(text, q.code, after-before)
}

// readLoad reads what dnsperf prints.
func readLoad(text []byte, code string, busy time.Duration) (load, error) {
	var sent, completed, expected float64
	var l load
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) == 5 && fields[0] == ">":
			seconds, err := strconv.ParseFloat(fields[4], 64)
			if err != nil {
				return l, fmt.Errorf("dnsperf printed %q", line)
			}
			l.latency = append(l.latency, time.Duration(seconds*float64(time.Second)))
		case len(fields) >= 3 && fields[0] == "Queries" && fields[1] == "sent:":
			sent, _ = strconv.ParseFloat(fields[2], 64)
		case len(fields) >= 3 && fields[0] == "Queries" && fields[1] == "completed:":
			completed, _ = strconv.ParseFloat(fields[2], 64)
		case len(fields) == 4 && strings.HasPrefix(string(bytes.TrimSpace(line)), "Queries per second:"):
			l.perSecond, _ = strconv.ParseFloat(fields[3], 64)
		case len(fields) >= 4 && fields[0] == "Response" && fields[1] == "codes:":
			for i, field := range fields[:len(fields)-1] {
				if field == code {
					expected, _ = strconv.ParseFloat(fields[i+1], 64)
				}
			}
		}
	}
	if sent == 0 || expected < leastAnswered*sent {
		return l, fmt.Errorf("of %.0f questions, %.0f were answered with %s:\n%.2000s", sent, expected, code, text[max(0, len(text)-1000):])
	}
	if busy > 0 {
		l.perCPU = completed / busy.Seconds()
	}
	return l, nil
}

// ticksPerSecond is the unit of times in /proc on all platforms that Go knows.
const ticksPerSecond = 100

// processorTime returns the user and system time that a process has used so far.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name is in brackets and may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d has no times", pid)
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// threadTime returns how long a process's threads have run so far, in finer steps than
// processorTime. Ended threads are not counted.
func threadTime(pid int) (sum time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		var ran time.Duration
		if _, err := fmt.Sscan(string(text), &ran); err != nil {
			return 0, fmt.Errorf("%s has %q: %w", thread, text, err)
		}
		sum += ran
	}
	return sum, nil
}
