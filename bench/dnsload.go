package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// load is the result of one run of dnsperf.
type load struct {
	// wall and processor are the times of one question, by the clock and of the server's processors.
	wall, processor time.Duration
	// latency has the latency of each answer, if latencies were asked for.
	latency sample
}

const (
	// dnsSockets is how many sockets dnsperf asks from, and dnsOutstanding how many questions may be
	// under way.
	dnsSockets, dnsOutstanding = 4, 100
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
func (l *lab) ask(ctx context.Context, of dnsLoad, seconds int, rate float64) (load, error) {
	addr, pid := of.server.addr, of.server.pid()
	args := []string{
		"-s", addr.Addr().String(), "-p", fmt.Sprint(addr.Port()), "-a", dnsAsker.String(), "-d", of.asked.file,
		"-l", fmt.Sprint(seconds), "-c", fmt.Sprint(dnsSockets), "-q", fmt.Sprint(dnsOutstanding), "-T", "1",
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
	before, err := processorTime(pid)
	if err != nil {
		return load{}, err
	}
	runErr := dnsperf.Run()
	after, err := processorTime(pid)
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
	return readLoad(text, of.asked.code, after-before)
}

// readLoad reads what dnsperf prints.
func readLoad(text []byte, code string, busy time.Duration) (load, error) {
	number := func(pattern string) (n float64) {
		if found := regexp.MustCompile(pattern).FindSubmatch(text); found != nil {
			n, _ = strconv.ParseFloat(string(found[1]), 64)
		}
		return n
	}
	sent, completed := number(`(?m)^ *Queries sent: +(\d+)`), number(`(?m)^ *Queries completed: +(\d+)`)
	rate, expected := number(`(?m)^ *Queries per second: +([\d.]+)`), number(`(?m)^ *Response codes: .*\b`+code+` (\d+)`)
	if sent == 0 || completed == 0 || rate == 0 || expected < leastAnswered*sent {
		return load{}, fmt.Errorf("of %.0f questions, %.0f were answered with %s:\n%.2000s", sent, expected, code, text[max(0, len(text)-1000):])
	}
	l := load{wall: time.Duration(float64(time.Second) / rate), processor: time.Duration(float64(busy) / completed)}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) != 5 || fields[0] != ">" {
			continue
		}
		seconds, err := strconv.ParseFloat(fields[4], 64)
		if err != nil {
			return l, fmt.Errorf("dnsperf printed %q", line)
		}
		l.latency = append(l.latency, time.Duration(seconds*float64(time.Second)))
	}
	return l, nil
}
