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
		how: fmt.Sprintf("npm's `e2b` and our own TypeScript client call one service, by turns, each call 20 ms after the last:\n"+
			"`commands.run(\"true\")`, our `exec` of `true`, and our `exec` of `true` in a login shell, as `commands.run` has one,\n"+
			"with a network as the stock client's sandbox has it. Each way has a container of its own, which has rested\n"+
			"meanwhile, so that the next command's shell waits. Create: `Sandbox.create()` and its first `commands.run(\"true\")`,\n"+
			"one after the other, of %d for whom a container waits. Files have %d MB, in one piece, and both clients use TCP. A\n"+
			"server that keeps nothing, and has what is read in memory, shows what the stock client takes by itself. Before each\n"+
			"the clients' garbage is collected.", e2bCreations, int(e2bBytes/1e6)),
		head: row([]string{"runtime", "what"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		x := r.e2b
		for _, line := range []struct {
			what string
			of   sample
		}{
			{"commands.run", x.run}, {"commands.run that nobody runs", x.answered}, {"our exec that nobody runs", x.quiet}, {"our exec", x.exec}, {"our exec of a login shell", x.login}, {"create and first command", x.create},
			{"files.write", x.write}, {"files.write that nobody keeps", x.discarded}, {"our upload", x.upload},
			{"files.read", x.read}, {"files.read from memory", x.supplied}, {"our download", x.download},
		} {
			s.rows = append(s.rows, row([]string{r.runtime, line.what}, percentiles(line.of)))
		}
		s.more = append(s.more, leastOf(r.runtime, x))
		s.verdicts = append(s.verdicts,
			below(r.runtime, "p50 of commands.run less our exec of a login shell", apart(x.run, x.login), e2bOverTarget),
			below(r.runtime, "p50 of create and first command", x.create.median(), e2bCreateTarget),
			atMost(r.runtime, "p50 of files.write ÷ our upload", ratio(x.write.median(), x.upload.median()), e2bSpeedTarget),
			atMost(r.runtime, "p50 of files.read ÷ our download", ratio(x.read.median(), x.download.median()), e2bSpeedTarget))
	}
	return s
}

// leastOf shows how much of each ratio, and of the difference, would be left with a server that
// takes no time.
func leastOf(runtime string, x foreign) table {
	over, least := apart(x.run, x.login), apart(x.answered, x.quiet)
	return table{
		how: "How much of each target is the stock client's own, " + runtime + ": with a server that does nothing, the least that any could reach,\n" +
			"and how far this service is above it. Our own client always has this service, except that exec has either server.",
		head: []string{"what", "measured", "with a server that does nothing", "this service above it"},
		rows: [][]string{
			{"commands.run less our exec of a login shell", millis(over), millis(least), millis(over - least)},
			{"files.write ÷ our upload", times(ratio(x.write.median(), x.upload.median())), times(ratio(x.discarded.median(), x.upload.median())), millis(x.write.median() - x.discarded.median())},
			{"files.read ÷ our download", times(ratio(x.read.median(), x.download.median())), times(ratio(x.supplied.median(), x.download.median())), millis(x.read.median() - x.supplied.median())},
		},
	}
}
