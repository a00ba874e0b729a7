package main

import (
	"fmt"
	"time"
)

const (
	e2bOverTarget   = 3 * time.Millisecond
	e2bCreateTarget = 60 * time.Millisecond
	e2bSpeedTarget  = 2
)

func e2bSection(f findings) section {
	s := section{
		title: "The stock client of E2B",
		how: "npm's `e2b` and our own TypeScript client call one service, in rows of ten by turns: `commands.run(\"true\")`, and `exec` of\n" +
			"`true` and, with a network as the client's sandbox has it, of what `commands.run` starts, a login shell. Create: `Sandbox.create()` and its first `commands.run(\"true\")`, one\n" +
			fmt.Sprintf("after the other, of %d for whom a container waits. Files have %d MB, in one piece, and both clients use TCP; with a\n", e2bCreations, int(e2bBytes/1e6)) +
			"server that keeps nothing, and has what is read in memory, there is what the stock client takes by itself.",
		head: row([]string{"runtime", "what"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		x := r.e2b
		for _, line := range []struct {
			what string
			of   sample
		}{
			{"commands.run", x.run}, {"commands.run that nobody runs", x.answered}, {"our exec", x.exec}, {"our exec of a login shell", x.login}, {"create and first command", x.create},
			{"files.write", x.write}, {"files.write that nobody keeps", x.discarded}, {"our upload", x.upload},
			{"files.read", x.read}, {"files.read from memory", x.supplied}, {"our download", x.download},
		} {
			s.rows = append(s.rows, row([]string{r.runtime, line.what}, percentiles(line.of)))
		}
		s.verdicts = append(s.verdicts,
			below(r.runtime, "p50 of commands.run less our exec of a login shell", x.run.median()-x.login.median(), e2bOverTarget),
			below(r.runtime, "p50 of create and first command", x.create.median(), e2bCreateTarget),
			atMost(r.runtime, "p50 of files.write ÷ our upload", ratio(x.write.median(), x.upload.median()), e2bSpeedTarget),
			atMost(r.runtime, "p50 of files.read ÷ our download", ratio(x.read.median(), x.download.median()), e2bSpeedTarget))
	}
	return s
}
