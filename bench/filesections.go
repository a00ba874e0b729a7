package main

import (
	"fmt"
	"time"
)

// These are the targets for files: the service's own time for a small one, and the speed of a large
// one relative to cp.
const (
	readTarget  = 500 * time.Microsecond
	largeTarget = 0.6
)

func readingSection(f findings) section {
	s := section{
		title: "Reading a file",
		how: fmt.Sprintf("`read` of a text of %d bytes in the home, through the API on the Unix socket with the Go client, on a kept\n"+
			"connection, until the answer is decoded. Beside it are `GET /v1/health` over the same socket with the same client,\n"+
			"which is what HTTP itself costs, and `os.ReadFile` of the same file in the benchmark's own process, which is the\n"+
			"floor. They take turns in rows of ten. Own time is the median of the read less that of health. Times of this table\n"+
			"are in microseconds. No container is involved.", readBytes),
		head: row([]string{"runtime", "way, µs"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		one := r.reading
		s.rows = append(s.rows,
			row([]string{r.runtime, "read"}, percentilesIn(one.api, micros)),
			row([]string{r.runtime, "health"}, percentilesIn(one.health, micros)),
			row([]string{r.runtime, "`os.ReadFile`"}, percentilesIn(one.floor, micros)))
		s.verdicts = append(s.verdicts,
			below(r.runtime, "p50 of read", one.api.median(), readTarget),
			below(r.runtime, "own time: p50 of read − p50 of health", one.own(), readTarget))
	}
	return s
}

func largeSection(f findings) section {
	s := section{
		title: "Large files",
		how: fmt.Sprintf("A file of %s of random bytes, between a folder of ours and the home, on the same disk. Upload: through the API with\n"+
			"the Go client, until the answer, which comes when the file is synced to the disk and has its name; beside it `cp` of\n"+
			"the same file to the same name in the home, and the same fsync. Download: through the API into a new file; beside it\n"+
			"`cp` of the same file to the same name. Nothing is synced then, so this compares memory. Both are also measured with\n"+
			"an fsync after them, which has no target. Both ways go %d times after one that does not count, each round begins\n"+
			"with the other one, and the table has the medians. What arrived is compared with what was sent, and deleted, before\n"+
			"the next. The source is in the page cache. Memory is sandboxd's resident memory before, and its peaks (VmHWM, reset\n"+
			"before) during all uploads and during all downloads. Bounded means that a peak is at most %s, however large the\n"+
			"file.", mib(f.settings.largeBytes), largeRounds, mib(boundedTarget)),
		head: []string{"runtime", "disk", "size", "way", "API, MB/s", "cp, MB/s", "ratio", "memory before", "peak"},
	}
	for _, r := range f.runtimes {
		one := r.large
		if one.bytes < f.settings.largeBytes {
			s.note = "**Little was free on the disk: a file had the size in the table, not the size asked for.**"
		}
		for _, way := range []struct {
			name     string
			ours, cp speeds
			peak     int64
			cpName   string
			judged   bool
		}{
			{"upload", one.upload, one.uploadCopy, one.uploadPeak, "cp and fsync", true},
			{"download", one.download, one.downloadCopy, one.downloadPeak, "cp", true},
			{"download and fsync", one.synced, one.syncedCopy, one.downloadPeak, "cp and fsync", false},
		} {
			speed := 0.0
			if cp := way.cp.median(); cp > 0 {
				speed = way.ours.median() / cp
			}
			s.rows = append(s.rows, []string{
				r.runtime, one.disk, mib(one.bytes), way.name, megabytes(way.ours.median()), megabytes(way.cp.median()),
				times(speed), mib(one.before), mib(way.peak),
			})
			if !way.judged {
				continue
			}
			s.verdicts = append(s.verdicts,
				atLeast(r.runtime, way.name+", speed of API ÷ "+way.cpName, speed, largeTarget),
				sized(r.runtime, way.name+", peak", "at most "+mib(boundedTarget), way.peak, boundedTarget))
		}
	}
	return s
}
