//go:build linux

package agent

import (
	"os"

	"github.com/daycare-run/sandbox/agent/wire"
)

// spool is the agent's end of the spool file; a nil one has no slots.
type spool struct {
	file *os.File
	free chan int
}

// openSpool finds the spool file. Without one everything goes over the session.
func openSpool() *spool {
	file, err := os.OpenFile(wire.SpoolPath, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	s := &spool{file: file, free: make(chan int, wire.SpoolSlots)}
	for slot := range wire.SpoolSlots {
		s.free <- slot
	}
	return s
}

// put stores data in a free slot and returns the frame that says so; nil when there is no slot.
func (s *spool) put(kind wire.Kind, data []byte) []byte {
	if s == nil {
		return nil
	}
	select {
	case slot := <-s.free:
		if _, err := s.file.WriteAt(data, int64(slot)*wire.SpoolSlotSize); err != nil {
			return nil // a full disk, say: this slot is not used again
		}
		return wire.Spooled{Kind: kind, Slot: slot, Length: len(data)}.Encode()
	default:
		return nil
	}
}

// release takes slots back that the service has read.
func (s *spool) release(slots []int) {
	if s == nil {
		return
	}
	for _, slot := range slots {
		select {
		case s.free <- slot:
		default:
		}
	}
}
