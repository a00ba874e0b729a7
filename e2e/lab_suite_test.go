package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	docker "github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/e2e/watchdog"
)

// scenarioLimit is several times what the longest scenario takes on a machine with two cores, in parallel with others.
const scenarioLimit = 25 * time.Minute

// scenarios limits the time of each scenario.
var scenarios *watchdog.Watchdog

// binaries is the folder with our programs, which TestMain builds.
var binaries string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// fewBeside reduces how much runs in parallel. The cases of a scenario that is run by name, as in a rerun after a failure, run
// one by one. On a slow machine fewer scenarios do: with more, none ends sooner, and each waits longer than it may.
func fewBeside() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	switch name := flag.Lookup("test.run").Value.String(); {
	case strings.HasPrefix(name, "^Test") && !strings.Contains(name, "|"):
		_ = parallel.Set("1")
	case parallel.String() == "4" && programsStartSlowly():
		_ = parallel.Set("2")
	}
}

// programsStartSlowly reports whether the machine is slow: a quick one takes less than a millisecond for each program.
func programsStartSlowly() bool {
	const programs, quick = 20, 1500 * time.Microsecond
	begun := time.Now()
	for range programs {
		_ = exec.Command("true").Run()
	}
	return time.Since(begun) > programs*quick
}

func run(m *testing.M) int {
	fewBeside()
	if err := missing(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cannot run: %v\n     run `make setup` as root first\n", err)
		return 1
	}
	if err := openRun(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer closeRun()
	scenarios = watchdog.New(watchdog.Config{
		Limit:   scenarioLimit + time.Duration(linkCuts()-1)*30*time.Second,
		Reserve: 90 * time.Second,
		End: func(why string, hang []string) {
			fmt.Fprintf(os.Stderr, "e2e: %s\n", why)
			explain(os.Stderr, hang)
			giveUp()
		},
	})
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		came := <-stopped
		fmt.Fprintf(os.Stderr, "e2e: %v, in %s\n", came, strings.Join(scenarios.Running(), ", "))
		if came == syscall.SIGQUIT {
			fmt.Fprintf(os.Stderr, "\n%s", ownStacks())
		}
		giveUp()
	}()
	binaries = filepath.Join(runDir, "bin")
	_ = os.CopyFS(binaries, os.DirFS("../bin")) // so that what has not changed since make is not linked again
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binaries+"/", "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: cannot build: %v\n%s", err, out)
		return 1
	}
	if err := promises.open(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if code == 0 && !promises.kept() {
		code = 1
	}
	tellFailed(nil)
	closeRun()
	if !leftNothing() {
		code = 1
	}
	return code
}

func missing() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("root is needed, for homes that belong to others")
	}
	engine, err := docker.NewClientWithOpts(docker.WithHost("unix://"+engineSocket), docker.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := engine.Info(ctx)
	if err != nil {
		return err
	}
	for _, runtime := range append(runtimes, "runsc-events", "runsc-offline", "runsc-linked") {
		if _, ok := info.Runtimes[runtime]; !ok {
			return fmt.Errorf("the engine does not know the runtime %s", runtime)
		}
	}
	if _, err = engine.ImageInspect(ctx, sandboxImage); err != nil {
		return err
	}
	_, err = currentPrograms()
	return err
}

// tellFailed is for readers of only the end of the output. ended are the scenarios that ran when the suite was ended.
func tellFailed(ended []string) {
	failed := slices.DeleteFunc(scenarios.Failed(), func(name string) bool { return slices.Contains(ended, name) })
	if len(failed) > 0 {
		fmt.Fprintln(os.Stderr, "e2e: failed:", strings.Join(failed, ", "))
	}
	if len(ended) > 0 {
		fmt.Fprintln(os.Stderr, "e2e: ended in:", strings.Join(ended, ", "))
	}
}

// giveUp removes what the run has made and ends the process. Meanwhile, the scenarios under way fail or go on.
func giveUp() {
	ended := scenarios.Running()
	scenarios.Stop()
	closed := make(chan struct{})
	go func() {
		closeRun()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(45 * time.Second):
		fmt.Fprintln(os.Stderr, "e2e: not all could be removed; the next run does that")
		killChildren()
	}
	tellFailed(ended)
	os.Exit(1)
}

// openLabs and openEngines have what has not been closed, so that an interrupted suite leaves nothing.
var openLabs, openEngines sync.Map

// closing makes a second closeRun wait for the first, so that the suite does not exit halfway.
var closing sync.Mutex

// closeRun removes everything that the run has made.
func closeRun() {
	closing.Lock()
	defer closing.Unlock()
	var labs sync.WaitGroup
	for l := range openLabs.Range {
		labs.Go(l.(*lab).close)
	}
	labs.Wait()
	for e := range openEngines.Range {
		_ = e.(*privateEngine).close()
	}
	closeWorlds()
	killChildren()
	_ = removeTree(runDir)
}
