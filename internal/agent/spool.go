//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// spool is the agent's end of the spool file, which is the agent's alone. With the file, besides
// its slots, the first process watches the agent: an agent holds the file's lock for all its life,
// and marks whether commands may be running. When the agent has ended, for whatever reason, the
// kernel gives the lock to the first process.
type spool struct {
	file *os.File
	free chan int
}

// The positions of the marks, each a byte after the slots.
const (
	markWatched = wire.SpoolSlots * wire.SpoolSlotSize // the first process watches
	markRunning = markWatched + 1                      // commands may be running
)

// watchLimit is how long the first process may take until it watches or listens.
const watchLimit = 10 * time.Second

func openSpool(path string) (*spool, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the spool: %w", err)
	}
	s := &spool{file: file, free: make(chan int, wire.SpoolSlots)}
	for slot := range wire.SpoolSlots {
		s.free <- slot
	}
	return s, nil
}

func (s *spool) mark(at int64, value byte) error {
	if _, err := s.file.WriteAt([]byte{value}, at); err != nil {
		return fmt.Errorf("cannot mark the spool: %w", err)
	}
	return nil
}

func (s *spool) marked(at int64) (bool, error) {
	var value [1]byte
	if _, err := s.file.ReadAt(value[:], at); err != nil {
		return false, fmt.Errorf("cannot read the spool: %w", err)
	}
	return value[0] != 0, nil
}

// lock blocks while another process has the lock.
func (s *spool) lock() error {
	for {
		if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// watch is called by the first process; begun receives a value for each agent that has begun. It
// returns when an agent has ended and left commands running.
func (s *spool) watch(begun <-chan os.Signal) error {
	if err := s.mark(markWatched, 1); err != nil {
		return err
	}
	for range begun {
		if err := s.lock(); err != nil {
			return fmt.Errorf("cannot watch the agent: %w", err)
		}
		running, err := s.marked(markRunning)
		if err != nil {
			return err
		}
		if running {
			return errors.New("the agent has ended before its commands")
		}
		if err := unix.Flock(int(s.file.Fd()), unix.LOCK_UN); err != nil {
			return err
		}
	}
	return nil
}

// begin waits for an earlier agent to end, and tells the first process to watch this one. No
// command may run before it.
func (s *spool) begin(tell func() error) error {
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		watched, err := s.marked(markWatched)
		if err != nil {
			return err
		}
		if watched {
			break
		}
		if time.Since(begun) > watchLimit {
			return errors.New("the container's first process does not watch its agents")
		}
	}
	if err := s.lock(); err != nil {
		return fmt.Errorf("cannot lock the spool: %w", err)
	}
	if left, err := s.marked(markRunning); err != nil {
		return err
	} else if left {
		return errors.New("an earlier agent has ended before its commands")
	}
	if err := s.mark(markRunning, 1); err != nil {
		return err
	}
	if err := tell(); err != nil {
		return fmt.Errorf("cannot tell the first process to watch this agent: %w", err)
	}
	return nil
}

// end marks that no command is running any more.
func (s *spool) end() error { return s.mark(markRunning, 0) }

// put stores data in a free slot and returns the frame that says where; nil when there is no slot.
func (s *spool) put(kind wire.Kind, data []byte) []byte {
	select {
	case slot := <-s.free:
		if _, err := s.file.WriteAt(data, int64(slot)*wire.SpoolSlotSize); err != nil {
			return nil // for example a full disk: this slot is not used again
		}
		return wire.Spooled{Kind: kind, Slot: slot, Length: len(data)}.Encode()
	default:
		return nil
	}
}

// release takes back slots that the service has read.
func (s *spool) release(slots []int) {
	for _, slot := range slots {
		select {
		case s.free <- slot:
		default:
		}
	}
}
