package main

import (
	"fmt"
	"strings"
	"time"
)

// These are the targets: the time that HTTP may add, and how many execs the service must take at a
// time.
const (
	overheadTarget  = 500 * time.Microsecond
	firstByteTarget = time.Millisecond
	crowdSize       = 600
	takenTarget     = 500
)

func surfaceSection(f findings) section {
	s := section{
		title: "The surface",
		how: fmt.Sprintf("Overhead: a warm exec of `true`, one POST on a kept connection until the answer is decoded, less the time that the\n"+
			"service says the exec took (`durationMs`). The floor is the same client's call of a service that decodes it, sleeps\n"+
			"for %d ms and says so: HTTP, JSON, and the waking of two processes. First byte: from a program's reading of the\n"+
			"clock, just before it writes the time to its standard output, until the reader has it. This includes the program's\n"+
			"pipe to the agent. Beside it is a byte's way through such a pipe, between two processes inside that have rested; the\n"+
			"difference counts from the agent on. Streamed is `application/x-ndjson`, attached a WebSocket. They take turns in\n"+
			"rows of ten.", restLength.Milliseconds()),
		head: row([]string{"runtime", "what"}, percentileColumns),
	}
	var crowds [][]string
	for _, r := range f.runtimes {
		x := r.surface
		s.rows = append(s.rows,
			row([]string{r.runtime, "overhead"}, percentiles(x.overhead)),
			row([]string{r.runtime, "overhead, floor"}, percentiles(x.floor)),
			row([]string{r.runtime, "first byte, streamed"}, percentiles(x.stream)),
			row([]string{r.runtime, "first byte, attached"}, percentiles(x.attached)),
			row([]string{r.runtime, "a pipe inside"}, percentiles(x.pipe)))
		lost := x.crowd.asked - x.crowd.ended - x.crowd.refused
		crowds = append(crowds, []string{r.runtime, fmt.Sprint(x.crowd.asked), fmt.Sprint(x.crowd.ended), fmt.Sprint(x.crowd.refused), fmt.Sprint(lost)})
		s.verdicts = append(s.verdicts,
			below(r.runtime, "p50 of overhead", x.overhead.median(), overheadTarget),
			below(r.runtime, "p50 of the first byte, streamed, from the agent on", x.stream.median()-x.pipe.median(), firstByteTarget),
			below(r.runtime, "p50 of the first byte, attached, from the agent on", x.attached.median()-x.pipe.median(), firstByteTarget),
			judge(r.runtime, "execs at once that ended well", fmt.Sprintf("at least %d", takenTarget), fmt.Sprint(x.crowd.ended), float64(x.crowd.ended), x.crowd.ended >= takenTarget),
			judge(r.runtime, "neither ended nor refused with 429", "0", strings.Join(append([]string{fmt.Sprint(lost)}, x.crowd.other...), "; "), float64(lost), x.crowd.asked > 0 && lost == 0),
		)
	}
	s.more = []table{{
		how:  fmt.Sprintf("Finally, %d execs of %d users come at once, each of which takes 5 s.", crowdSize, crowdUsers),
		head: []string{"runtime", "execs at once", "ended well", "refused", "lost"}, rows: crowds,
	}}
	return s
}
