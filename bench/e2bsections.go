package main

import (
	"fmt"
	"time"
)

const (
	e2bOverTarget   = 3 * time.Millisecond
	e2bCreateTarget = 60 * time.Millisecond
)

func e2bSection(f findings) section {
	s := section{
		title: "The stock client of E2B",
		how: fmt.Sprintf("npm's `e2b` and our own TypeScript client call one service, by turns, each call 40 ms after the last:\n"+
			"`commands.run(\"true\")`, and our `exec` of `true` in a login shell, as `commands.run` has one, with a network as the\n"+
			"stock client's sandbox has it. Each way has a container of its own, which has rested meanwhile, so that the next\n"+
			"command's shell waits. Create: `Sandbox.create()` and its first `commands.run(\"true\")`, one after the other, of %d\n"+
			"for whom a container waits.", e2bCreations),
		head: row([]string{"runtime", "what"}, percentileColumns),
	}
	for _, r := range f.runtimes {
		x := r.e2b
		s.rows = append(s.rows,
			row([]string{r.runtime, "commands.run"}, percentiles(x.run)),
			row([]string{r.runtime, "our exec of a login shell"}, percentiles(x.login)),
			row([]string{r.runtime, "create and first command"}, percentiles(x.create)))
		s.verdicts = append(s.verdicts,
			below(r.runtime, "p50 of commands.run less our exec of a login shell", apart(x.run, x.login), e2bOverTarget),
			below(r.runtime, "p50 of create and first command", x.create.median(), e2bCreateTarget))
	}
	return s
}
