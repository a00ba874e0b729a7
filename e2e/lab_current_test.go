package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// mainScenarios run under gVisor on the current engine, as runsc@current: what the product is for, and whatever uses Docker in a
// way of its own. All else runs under gVisor on the machine's engine, which may be an older one.
var mainScenarios = []string{
	// Commands.
	"TestOutputAndExitAreExact", "TestStdinLargerThanAPipe", "TestLargeOutputArrivesWhole", "TestStreamedEvents",
	"TestTerminal",
	// How commands end.
	"TestNothingOutlivesACommand", "TestTimeoutEndsTheWholeTree", "TestACancelledCallEndsTheTree", "TestSignals",
	// Containers and the service.
	"TestManyFirstCallsMakeOneContainer", "TestContainerRemovedBehindOurBack",
	"TestKilledServiceLeavesNothingRunning", "TestShutdownLetsCommandsFinish", "TestPool",
	"TestAnIdleContainerIsFrozen", "TestAFrozenContainerOutlivesTheService", "TestAFrozenContainerBehindOurBack",
	"TestAFrozenContainerStandsStill", "TestFrozenContainersAreRemoved",
	// Images.
	"TestImageIsBuilt", "TestRebuiltImageReplacesContainers",
	// What a call may see and do.
	"TestUsersAreApart", "TestNoNetworkButALoopback", "TestCommandsAreConfined", "TestFilesBelongToTheHomesOwner", "TestGrantsOpenOnlyTheirPaths",
	"TestMasksLeaveNothing", "TestDenyRead", "TestEvents",
	"TestFurtherMountsAndSkills",
	// Files.
	"TestTheDocumentsExamples", "TestBothSidesSeeEachOthersFiles", "TestFilesOnTheCommandLine",
	"TestTmpIsOneForAUser", "TestTmpIsBounded",
	// What a call may reach.
	"TestEgressByName", "TestEgressOpen", "TestEgressWaysAround", "TestEgressRebinding",
	"TestEgressSharedAddress", "TestEgressExtraPorts", "TestEgressWhileTheServiceIsDown", "TestEgressRepairs",
	"TestEgressStaysClosed", "TestEgressOfForgers", "TestEgressOfRealPrograms",
	// Processes.
	"TestProcessOutlivesTheService", "TestProcessStops", "TestProcessEgress",
	"TestProcessOutOfMemory",
}

// A place is where labs run: a Docker daemon, and the network namespace that it shares with their sandboxd.
type place struct {
	socket string
	ns     netns.NsHandle // none: the namespace of the tests
	inet   string         // the name of the test internet beside it
	used   sync.RWMutex   // held by its scenarios
}

// enter waits until the scenario may run in the place beside the scenarios that run there.
func (p *place) enter(t *testing.T) {
	if slices.Contains(flushing, topOf(t)) {
		p.used.Lock()
		t.Cleanup(p.used.Unlock)
		return
	}
	p.used.RLock()
	t.Cleanup(p.used.RUnlock)
}

// machine is the place of the machine's own Docker.
var machine = &place{socket: engineSocket, ns: netns.None(), inet: "e2e-inet"}

// do runs f in the network namespace of the place. Sockets that f makes and programs that it starts stay there.
func (p *place) do(f func() error) error {
	if !p.ns.IsOpen() {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		err := netns.Set(p.ns)
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// newNamespace makes a network namespace with a loopback interface that is up.
func newNamespace() (netns.NsHandle, error) {
	ns := netns.None()
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		if ns, err = netns.New(); err == nil {
			err = loopbackUp()
		}
		result <- err
	}()
	return ns, <-result
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// onceScenarios run under gVisor alone. A client of ours or of E2B's meets no runtime that TestStockClients does not meet, too, and
// what programs trust, what they send, and what is put into their requests, is no matter of the runtime.
var onceScenarios = []string{
	"TestADayOfAnAgent", "TestEveryDoorTellsTheSame", "TestTypeScript", "TestStockClientsMeetARestart", "TestStockClientsSandboxesFromThePool",
	"TestCertificatesOfTheHouse", "TestCredentials", "TestEgressOfRealPrograms", "TestEgressOfGitAndPip",
}

// each runs a scenario once for each runtime, in parallel: under gVisor in the other place, if it is a main scenario.
func each(t *testing.T, scenario func(t *testing.T, p *place, runtime string)) {
	beside(t)
	for _, runtime := range runtimes {
		if runtime == "runc" && slices.Contains(onceScenarios, topOf(t)) {
			continue
		}
		if runtime == "runsc" && slices.Contains(mainScenarios, topOf(t)) {
			t.Run(runtime+"@current", func(t *testing.T) {
				p := currentOf(t).get(t) // before begin: this may take longer than a scenario may
				p.enter(t)
				begin(t)
				scenario(t, p, runtime)
			})
			continue
		}
		t.Run(runtime, func(t *testing.T) {
			begin(t)
			scenario(t, machine, runtime)
		})
	}
}

// current is the current engine, and flushed is another one, only for the scenarios in flushing, so that no other scenario
// has to wait for these. The first scenario that needs an engine starts it; it ends with the suite.
var (
	current = currentEngine{inet: "e2e-inet-new"}
	flushed = currentEngine{inet: "e2e-inet-fl"}
)

// currentOf returns the current engine on which the scenario is run.
func currentOf(t *testing.T) *currentEngine {
	if slices.Contains(flushing, topOf(t)) {
		return &flushed
	}
	return &current
}

type currentEngine struct {
	inet   string // the test internet of its place
	mu     sync.Mutex
	begun  bool
	engine *privateEngine // nil if it did not start
}

func (c *currentEngine) get(t *testing.T) *place {
	t.Helper()
	beside(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		c.begun = true
		c.engine = startCurrent(t, c.inet)
	}
	if c.engine == nil {
		t.Fatal("the current engine did not start; the first scenario that needed it says why")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of dockerd's log:\n%s", c.engine.log.tail())
		}
	})
	return c.engine.place
}

// startCurrent starts dockerd with its defaults, that is with its bridge, its rules, its image store and its own
// containerd, in a network namespace that is like a host of its own, and gives it the sandbox image.
func startCurrent(t *testing.T, inet string) *privateEngine {
	t.Helper()
	programs, err := currentPrograms()
	if err != nil {
		t.Fatal(err)
	}
	found, err := connect(t, engineSocket).ImageInspect(t.Context(), sandboxImage)
	if err != nil {
		t.Fatal(err)
	}
	e := layEngine(t, map[string]any{"userland-proxy": false})
	e.programs = programs
	e.place.inet = inet
	prepared := filepath.Join(preparedEngines, filepath.Base(programs)+"-"+strings.TrimPrefix(found.ID, "sha256:")[:12])
	if linkPrepared(prepared, e.dir+"/data") == nil {
		e.start(t)
		return e
	}
	_ = removeTree(e.dir + "/data")
	e.start(t)
	e.loadImage(t)
	e.stop()
	if err := prepareEngine(e.dir+"/data", prepared); err != nil {
		t.Logf("the next run has to load the image, too: %v", err)
	}
	e.start(t)
	return e
}

// loadImage loads the sandbox image into an engine.
func (e *privateEngine) loadImage(t *testing.T) {
	t.Helper()
	saved, err := connect(t, engineSocket).ImageSave(t.Context(), []string{sandboxImage})
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	loaded, err := connect(t, e.place.socket).ImageLoad(t.Context(), saved)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Body.Close()
	if said, err := io.ReadAll(loaded.Body); err != nil || strings.Contains(string(said), `"error"`) {
		t.Fatalf("cannot give the current engine the image: %v: %s", err, said)
	}
}

// preparedEngines holds, for later runs, the files of current engines that have the image and nothing else. Loading the
// image takes longer than a dozen scenarios.
const preparedEngines = "/var/lib/daycare-sandbox-tests"

// prepareEngine keeps the files of a stopped engine, and removes those of other images or versions.
func prepareEngine(data, prepared string) error {
	lock, err := lockPrepared(syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if exists(prepared) { // another run was first
		return nil
	}
	others, _ := filepath.Glob(preparedEngines + "/engine-*")
	for _, other := range others {
		_ = removeTree(other)
	}
	making := prepared + "." + filepath.Base(runDir)
	if err := linkEngine(data, making); err != nil {
		return errors.Join(err, removeTree(making))
	}
	return os.Rename(making, prepared)
}

// lockPrepared waits for other runs that copy or replace these files.
func lockPrepared(how int) (*os.File, error) {
	if err := os.MkdirAll(preparedEngines, 0o700); err != nil {
		return nil, err
	}
	return lockDir(preparedEngines, how)
}

// linkPrepared gives an engine the files that an earlier run has kept.
func linkPrepared(prepared, data string) error {
	lock, err := lockPrepared(syscall.LOCK_SH)
	if err != nil {
		return err
	}
	defer lock.Close()
	return linkEngine(prepared, data)
}

// linkEngine copies the files of a stopped engine. The contents of images are hard links: no engine changes them.
func linkEngine(from, to string) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "--archive", "--link", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot link %s: %w: %.500s", from, err, out)
	}
	return filepath.WalkDir(to, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "blobs" || entry.Name() == "snapshots"):
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		if out, err := exec.Command("cp", "--archive", "--remove-destination", filepath.Join(from, strings.TrimPrefix(name, to)), name).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot copy %s: %w: %.500s", name, err, out)
		}
		return nil
	})
}

// currentPrograms returns the folder of dockerd and of the programs that it starts.
func currentPrograms() (string, error) {
	out, err := exec.Command("../tools/engine/build.sh", "path").Output()
	if err != nil {
		return "", fmt.Errorf("tools/engine/build.sh: %w", err)
	}
	dir := strings.TrimSpace(string(out))
	for _, name := range []string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("the current engine is not built (scripts/setup.sh engine builds it): %w", err)
		}
	}
	return dir, nil
}

// Every scenario that is named exists.
func TestMainScenariosAreThere(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, name := range slices.Concat(mainScenarios, onceScenarios, slices.Collect(maps.Keys(alone))) {
		if !strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T) {") {
			t.Errorf("there is no %s", name)
		}
	}
}

// The current engine has the expected version, and its default image store.
func TestTheCurrentEngineIsOne(t *testing.T) {
	engine := connect(t, current.get(t).socket)
	info, err := engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	version, err := engine.ServerVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.Version, "2.") || len(info.DriverStatus) == 0 || !slices.Contains(info.DriverStatus[0][:], "io.containerd.snapshotter.v1") {
		t.Errorf("version %s, API %s, store %v", version.Version, version.APIVersion, info.DriverStatus)
	}
}
