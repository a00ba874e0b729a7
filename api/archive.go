package api

import (
	"net/http"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/files"
)

// tarType is the media type of a directory.
const tarType = "application/x-tar"

// archiveWhere reads the query of a call on a directory.
func archiveWhere(req *http.Request) (files.Where, error) {
	query, err := fileQuery(req, "path", "follow")
	if err != nil {
		return files.Where{}, err
	}
	follow, err := boolean(query, "follow")
	return files.Where{Path: query["path"], Follow: follow}, err
}

// unpack writes the entries of the body as it arrives.
func (s *server) unpack(w http.ResponseWriter, req *http.Request) error {
	where, err := archiveWhere(req)
	if err != nil {
		return err
	}
	if err := bodyIs(req, tarType); err != nil {
		return err
	}
	body := &uploadBody{from: req.Body, control: http.NewResponseController(w)}
	done, err := s.service.Unpack(req.Context(), req.PathValue("id"), where, body)
	if failed, err := s.sent(w, body, err); failed {
		return err
	}
	s.answer(w, http.StatusOK, types.Unpacked(done))
	return nil
}

// pack sends a directory. What fails after the answer has begun breaks the connection.
func (s *server) pack(w http.ResponseWriter, req *http.Request) error {
	where, err := archiveWhere(req)
	if err != nil {
		return err
	}
	found, err := s.service.Pack(req.Context(), req.PathValue("id"), where)
	if err != nil {
		return err
	}
	defer found.Close()
	head := w.Header()
	head.Set("Content-Type", tarType)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Disposition", disposition(found.Name+".tar"))
	if req.Method == http.MethodHead {
		return nil
	}
	if err := found.Send(w); err != nil {
		s.cut = true
		_ = http.NewResponseController(w).Flush() // the archive says why it ends
		return reportedError{err}
	}
	return nil
}
