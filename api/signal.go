package api

import (
	"net/http"
	"sync"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// streamedExecs are the commands whose output is being streamed, so that signals can find them. It
// is safe for concurrent use.
type streamedExecs struct {
	mu     sync.Mutex
	inputs map[streamedExec]*attach.Input
}

type streamedExec struct{ sandboxID, execID string }

// add returns the input and id of a new command. The caller calls remove when the command has
// ended.
func (s *streamedExecs) add(sandboxID string) (in *attach.Input, execID string, remove func()) {
	in = attach.NewInput(false, func(int) {})
	key := streamedExec{sandboxID, attach.NewID()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs[key] = in
	return in, key.execID, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.inputs, key)
	}
}

func (s *streamedExecs) find(sandboxID, execID string) *attach.Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inputs[streamedExec{sandboxID, execID}]
}

// signalExec sends a signal to the command of a streamed exec, or of one that goes on without its
// caller.
func (s *server) signalExec(req *http.Request, body types.ExecSignal) (nothing, error) {
	signal, err := parseSignal(body.Signal)
	if err != nil {
		return nothing{}, err
	}
	id, execID := req.PathValue("id"), req.PathValue("execId")
	if _, err := s.service.Get(id); err != nil {
		return nothing{}, err
	}
	in := s.streamed.find(id, execID)
	if in == nil {
		e, err := s.service.DetachedExec(id, execID)
		if err != nil {
			return nothing{}, err
		}
		in = e.Input
	}
	in.Signal(signal)
	return nothing{}, nil
}
