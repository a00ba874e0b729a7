package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/engine"
)

// A container that is removed while it is adopted is replaced, and its user does not notice.
func TestAContainerRemovedWhileItIsAdopted(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "lost")
		l.startProcess(t, "lost", types.StartProcess{Name: "goes-on", Command: "sleep 7801"})
		for round := range 3 {
			l.sh(t, "lost", "true")
			var mine string
			for _, c := range l.containersOf(t, "lost") {
				if c.Labels["run.daycare.sandbox.process"] == "" {
					mine = c.ID
				}
			}
			l.stop(syscall.SIGKILL)
			var removed sync.WaitGroup
			removed.Go(func() {
				eventually(t, "the service answers", func() bool {
					_, err := l.client.Health(context.Background())
					return err == nil
				})
				time.Sleep(time.Duration(round) * 20 * time.Millisecond)
				l.removeByForce(mine)
			})
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			out, err := l.client.Exec(t.Context(), "lost", types.Exec{Permissions: workspace, Command: "echo there"})
			removed.Wait()
			// What it was doing when the container went may be unknown; then it says so.
			if err != nil && !strings.Contains(err.Error(), "the container was lost while the command ran") || err == nil && out.Stdout != "there\n" {
				t.Errorf("got %+v, %v", out, err)
			}
			if took := time.Since(begun); took > 2*time.Minute {
				t.Errorf("it took %v", took)
			}
			eventually(t, "the service knows that it is gone", func() bool {
				list, err := l.client.Containers(t.Context())
				return err == nil && !slices.ContainsFunc(list, func(c types.Container) bool { return c.ID == mine })
			})
		}
		l.sh(t, "lost", "true")
	})
}

// Whatever happens to containers at Docker, calls run or fail in seconds and say why.
func TestContainersThatGoAtAnyTime(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "any")
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		var work sync.WaitGroup
		for range 3 {
			work.Go(func() {
				for ctx.Err() == nil {
					begun := time.Now()
					timeout := int64(5000)
					_, err := l.client.Exec(context.Background(), "any", types.Exec{Permissions: workspace, TimeoutMs: &timeout, Command: "true"})
					var failure *client.Error
					if err != nil && !(errors.As(err, &failure) && (strings.Contains(failure.Message, "lost") || strings.Contains(failure.Message, "paused"))) {
						t.Errorf("a call failed with %v", err)
					}
					if took := time.Since(begun); took > 2*time.Minute {
						t.Errorf("a call took %v: %v", took, err)
					}
				}
			})
		}
		for ctx.Err() == nil {
			l.disturb()
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		}
		work.Wait()
		// The last container may have been ended just now.
		eventually(t, "a call runs", func() bool {
			out, err := l.client.Exec(t.Context(), "any", types.Exec{Permissions: workspace, Command: "echo there"})
			return err == nil && out.Stdout == "there\n"
		})
	})
}

// disturb does something to a container that somebody at Docker may do.
func (l *lab) disturb() {
	list, err := l.listContainers()
	if err != nil || len(list) == 0 {
		return
	}
	ctx, id := context.Background(), list[rand.IntN(len(list))].ID
	switch rand.IntN(3) {
	case 0:
		l.removeByForce(id)
	case 1:
		_ = l.engine.ContainerKill(ctx, id, "KILL")
	default:
		_ = l.engine.ContainerPause(ctx, id)
		time.Sleep(50 * time.Millisecond)
		_ = l.engine.ContainerUnpause(ctx, id)
	}
}

// A container that is paused goes whole, with the shim by which Docker held it.
func TestAPausedContainerIsRemovedWhole(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "paused")
		var id string
		eventually(t, "a container is paused before it is removed", func() bool {
			l.sh(t, "paused", "true")
			list := l.containersOf(t, "paused")
			if len(list) != 1 {
				return false
			}
			id = list[0].ID
			return l.engine.ContainerPause(t.Context(), id) == nil
		})
		eventually(t, "the container is gone", func() bool { return len(l.containers(t)) == 0 })
		eventually(t, "its shim is gone", func() bool { _, err := engine.ShimOf(id); return err != nil })
	}, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
}

// After a restart with many containers a call waits for its own, and all are taken over.
func TestADozenAreAdopted(t *testing.T) {
	const users = 12
	eachOwn(t, func(t *testing.T, l *lab) {
		var calls sync.WaitGroup
		for i := range users {
			user := fmt.Sprintf("adopted-%d", i)
			l.register(t, user)
			calls.Go(func() { l.sh(t, user, "true") })
		}
		calls.Wait()
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		out := l.run(t, fmt.Sprintf("adopted-%d", users-1), types.Exec{Command: "true"})
		t.Logf("the first call took %v", time.Since(begun))
		if out.Cold {
			t.Error("it had to make a container")
		}
		eventually(t, "all are taken over", func() bool {
			list, err := l.client.Containers(t.Context())
			return err == nil && len(list) == users && !strings.Contains(fmt.Sprint(list), "starting")
		})
	})
}
