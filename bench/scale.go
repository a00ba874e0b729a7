package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// scaled is what things take among few others and among many.
type scaled []scaling

// scaling is one of them, with the least and the largest number of others first and last.
type scaling struct {
	what  string
	among []string
	takes []time.Duration
}

// scaleTarget is how much longer something may take among many others than among few.
const scaleTarget = 1.2

// measureScale runs the benchmarks of the packages that a call and a start pass through, which have
// everything but the engine and the agents, several times. The least time of each counts: what is
// above it comes from the machine.
func (l *lab) measureScale(ctx context.Context) (found scaled, err error) {
	const rounds = 2
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkAmong$", "-benchtime", "2000x", "-count", fmt.Sprint(rounds),
		"./internal/warm", "./internal/sandbox")
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w (run this in the folder bench): %s", err, out)
	}
	return readScale(out)
}

// readScale reads lines such as "BenchmarkAmong/a_call/2500-2  300  76401 ns/op".
func readScale(out []byte) (found scaled, err error) {
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != "ns/op" {
			continue
		}
		parts := strings.Split(fields[0], "/")
		nanoseconds, err := strconv.ParseFloat(fields[2], 64)
		if err != nil || len(parts) != 3 {
			return nil, fmt.Errorf("not a result: %q", lines.Text())
		}
		among, _, _ := strings.Cut(parts[2], "-")
		found = found.with(strings.ReplaceAll(parts[1], "_", " "), among, time.Duration(nanoseconds))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no results in %q", out)
	}
	return found, lines.Err()
}

// with adds a measurement. Of one that is there already, the least counts.
func (s scaled) with(what, among string, took time.Duration) scaled {
	for i := range s {
		if s[i].what != what {
			continue
		}
		for k, other := range s[i].among {
			if other == among {
				s[i].takes[k] = min(s[i].takes[k], took)
				return s
			}
		}
		s[i].among, s[i].takes = append(s[i].among, among), append(s[i].takes, took)
		return s
	}
	return append(s, scaling{what, []string{among}, []time.Duration{took}})
}

func scaleSection(f findings) section {
	s := section{
		title: "Among many others",
		how: "What one user costs the service itself, among few and among many containers (of a user each) or registrations (ten\n" +
			"for each user). The engine and the agents are in memory, and answer at once. The least mean of two rounds.",
		head: []string{"what", "among", "takes, µs", "among", "takes, µs", "ratio"},
	}
	for _, one := range f.scale {
		last := len(one.takes) - 1
		slower := ratio(one.takes[last], one.takes[0])
		s.row(one.what, one.among[0], inMicros(one.takes[0]), one.among[last], inMicros(one.takes[last]), times(slower))
		s.judge(atMost("any", one.what+", many ÷ few", slower, scaleTarget, times))
	}
	return s
}

func inMicros(d time.Duration) string {
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond))
}
