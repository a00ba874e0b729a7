package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/pathmap"
)

// read counts its answer as the request's memory: twice, because of the copy as text or base64.
func (s *server) read(w http.ResponseWriter, req *http.Request) error {
	var body types.Read
	if err := s.decode(req, &body); err != nil {
		return err
	}
	r := files.ReadRequest{
		Follow: body.Follow, Permissions: body.Permissions, Raw: body.Raw, Binary: body.Binary,
		Room: func(bytes int) error { return s.memory.take(2 * bytes) },
	}
	var err error
	if r.Path, err = pathOf("path", body.Path, body.PathBase64); err != nil {
		return err
	}
	if r.Offset, err = lineNumber("offset", body.Offset); err != nil {
		return err
	}
	if r.Limit, err = lineNumber("limit", body.Limit); err != nil {
		return err
	}
	if body.SkipBytes != nil {
		r.SkipBytes = *body.SkipBytes
	}
	if r.Lossy = body.Text == types.TextLossy; !r.Lossy && body.Text != "" {
		return fmt.Errorf("text %.64q is not %q: %w", body.Text, types.TextLossy,
			cerrdefs.ErrInvalidArgument)
	}
	found, err := s.service.Read(req.Context(), req.PathValue("id"), r)
	if err != nil {
		return err
	}
	answer := readResult(found)
	s.answerTexts(w, []largeText{{name: "content", text: answer.Content}}, struct {
		types.ReadResult
		Content *string `json:"content,omitempty"` // it is sent by itself
	}{ReadResult: answer})
	return nil
}

// lineNumber returns 0 for a missing value, as the facade expects.
func lineNumber(key string, n *int) (int, error) {
	if n == nil {
		return 0, nil
	}
	if *n < 1 {
		return 0, fmt.Errorf("%s %d is less than 1: %w", key, *n, cerrdefs.ErrInvalidArgument)
	}
	return *n, nil
}

func readResult(r files.ReadResult) types.ReadResult {
	out := types.ReadResult{
		Type: types.ReadText, Bytes: r.Bytes, MimeType: r.MimeType, Encoding: r.Encoding,
		ResolvedPath: r.ResolvedPath, DisplayPath: r.DisplayPath,
	}
	if !r.IsText {
		out.Type = types.ReadBinary
		if r.MimeType != "" {
			out.Type = types.ReadImage
		}
		out.Content = base64.StdEncoding.EncodeToString(r.Content)
		return out
	}
	out.Content = string(r.Content)
	out.Lines = &types.Lines{TotalLines: r.TotalLines, OutputLines: r.OutputLines,
		Truncated: r.Truncated, Notice: r.Notice}
	if r.Next != nil {
		out.Next = &types.ReadOn{Offset: r.Next.Offset, SkipBytes: r.Next.SkipBytes}
	}
	if r.TruncatedBy != "" {
		out.TruncatedBy = &r.TruncatedBy
	}
	return out
}

func (s *server) write(req *http.Request, body types.Write) (types.Written, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return types.Written{}, err
	}
	content, err := decodeBytes("content", body.Content, body.Encoding)
	if err != nil {
		return types.Written{}, err
	}
	written, err := s.service.Write(req.Context(), req.PathValue("id"), files.WriteRequest{
		Path: path, Follow: body.Follow, Permissions: body.Permissions,
		Body: bytes.NewReader(content), Append: body.Append, Exclusive: body.Exclusive,
	})
	return types.Written(written), err
}

// listDir counts its answer as the request's memory.
func (s *server) listDir(req *http.Request, body types.Look) (types.Listing, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return types.Listing{}, err
	}
	found, err := s.service.ListDir(req.Context(), req.PathValue("id"),
		files.Where{Path: path, Follow: body.Follow, Permissions: body.Permissions})
	if err != nil {
		return types.Listing{}, err
	}
	out := types.Listing{Path: found.Path, Entries: make([]types.Entry, len(found.Entries)),
		Truncated: found.Truncated}
	n := 0
	for i, e := range found.Entries {
		const beside = 256
		out.Entries[i] = entry(e)
		n += 2*(len(e.Name)+len(e.LinkTarget)) + beside
	}
	return out, s.memory.take(n)
}

func (s *server) stat(req *http.Request, body types.Look) (types.Entry, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return types.Entry{}, err
	}
	found, err := s.service.Stat(req.Context(), req.PathValue("id"),
		files.Where{Path: path, Follow: body.Follow, Permissions: body.Permissions})
	return entry(found), err
}

func entry(e files.Entry) types.Entry {
	out := types.Entry{Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode),
		Mtime: sayable(e.ModTime)}
	out.Name, out.NameBase64 = nameForms(e.Name)
	out.LinkTarget, out.LinkTargetBase64 = nameForms(e.LinkTarget)
	return out
}

// nameForms returns a name as text, and its bytes if pathOf would not take that text for it.
func nameForms(name string) (text, encoded string) {
	if !utf8.ValidString(name) || pathmap.CheckControl(name) != nil {
		encoded = base64.StdEncoding.EncodeToString([]byte(name))
	}
	return name, encoded
}

// The seconds that RFC 3339 can say with the years that all readers know, 1 to 9999.
var (
	firstSecond = time.Time{}.Unix()
	lastSecond  = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC).Unix() - 1
)

// sayable moves a file's time to the nearest second that an answer can have: whoever owns a file
// may give it any other.
func sayable(t time.Time) time.Time {
	return time.Unix(max(firstSecond, min(t.Unix(), lastSecond)), int64(t.Nanosecond())).UTC()
}

func (s *server) mkdir(req *http.Request, body types.Mkdir) (types.Made, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return types.Made{}, err
	}
	return types.Made{Path: path},
		s.service.Mkdir(req.Context(), req.PathValue("id"), path, body.Parents)
}

func (s *server) move(req *http.Request, body types.Move) (types.Done, error) {
	from, err := pathOf("from", body.From, body.FromBase64)
	if err != nil {
		return types.Done{}, err
	}
	to, err := pathOf("to", body.To, body.ToBase64)
	if err != nil {
		return types.Done{}, err
	}
	return types.Done{}, s.service.Move(req.Context(), req.PathValue("id"), from, to,
		body.Overwrite)
}

func (s *server) remove(req *http.Request, body types.Remove) (types.Done, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return types.Done{}, err
	}
	return types.Done{}, s.service.Remove(req.Context(), req.PathValue("id"), path, body.Recursive)
}
