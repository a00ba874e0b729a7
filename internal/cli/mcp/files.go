package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/policy"
)

// ReadInput is the input of read.
type ReadInput struct {
	Path   string `json:"path" jsonschema:"relative to the working directory, absolute, or from the home as ~/path"`
	Follow bool   `json:"follow,omitempty" jsonschema:"if the path is a symbolic link, read what it leads to"`
	Offset *int   `json:"offset,omitempty" jsonschema:"the first line to read, from 1"`
	Limit  *int   `json:"limit,omitempty" jsonschema:"how many lines to read; at most 2000 come at a time"`
	// SkipBytes is also the first byte with Encoding, which has no lines.
	SkipBytes *int   `json:"skipBytes,omitempty" jsonschema:"how many bytes of the first line, or with encoding of the file, to leave out"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"base64 to read the bytes of any file of at most 32 MiB, 49152 at a time; read parts of a larger one with exec"`
	Text      string `json:"text,omitempty" jsonschema:"lossy to read as text what is not UTF-8; do not write that back"`
}

// WriteInput is the input of write.
type WriteInput struct {
	Path     string `json:"path" jsonschema:"relative to the working directory, absolute, or from the home as ~/path; directories that are missing are made"`
	Content  string `json:"content" jsonschema:"all of the file's text, or its bytes as encoding says"`
	Encoding string `json:"encoding,omitempty" jsonschema:"base64 to write bytes"`
	Append   bool   `json:"append,omitempty" jsonschema:"add to the end of the file instead of replacing it"`
	Follow   bool   `json:"follow,omitempty" jsonschema:"if the path is a symbolic link, write to what it leads to"`
}

// EditInput is the input of edit.
type EditInput struct {
	Path   string `json:"path" jsonschema:"a text file: relative to the working directory, absolute, or from the home as ~/path"`
	Old    string `json:"oldText" jsonschema:"the text to replace, exactly as it is in the file; it must be there once, so give enough of what is around it"`
	New    string `json:"newText" jsonschema:"the text in its place; may be empty"`
	Follow bool   `json:"follow,omitempty" jsonschema:"if the path is a symbolic link, edit what it leads to"`
}

// ListInput is the input of list.
type ListInput struct {
	Path   string `json:"path,omitempty" jsonschema:"a directory: relative to the working directory, absolute, or from the home as ~/path; default the working directory"`
	Follow bool   `json:"follow,omitempty" jsonschema:"if the path is a symbolic link, list what it leads to"`
}

func (s *Server) addFiles() {
	addTool(s, "read", "Read a file", onlyReads, s.read,
		"Read a text or a picture in the sandbox's home, /tmp or mounts. A long text comes in parts: read on as the notice says. Bytes of other files come with encoding base64. Read the system's files with exec.")
	addTool(s, "write", "Write a file", changes, s.write,
		"Write a whole file: a text, or bytes with encoding base64. It may be in "+s.writable()+".")
	addTool(s, "edit", "Edit a file", changes, s.edit,
		"Replace a text in a file by another one. The text must be there exactly once. The file may be in "+
			s.writable()+".")
	addTool(s, "list", "List a directory", onlyReads, s.list,
		"List what is in a directory of the sandbox's home, /tmp or mounts.")
}

// writable returns the places where the write tool may write.
func (s *Server) writable() string {
	places := []string{"/tmp"}
	if s.cfg.Bounds.has(policy.TagWorkspace) {
		places = append(places, s.cfg.Bounds.WorkingDir)
	}
	for _, tag := range s.cfg.Bounds.Grants {
		if dir, ok := strings.CutPrefix(tag, policy.TagWrite); ok {
			places = append(places, dir)
		}
	}
	return strings.Join(places, ", ")
}

// seeing returns what calls for files may see: the service follows links, and what they lead to is
// to be within the bounds, too.
func (s *Server) seeing(follow bool) types.Seeing {
	tags := []string{} // nil is all that the sandbox holds
	for _, tag := range s.cfg.Bounds.Grants {
		if kind, dir := policy.SplitTag(tag); kind == policy.TagWrite || kind == policy.TagRead {
			tags = append(tags, kind+s.cfg.Bounds.inside(dir))
		} else if tag == policy.TagWorkspace {
			tags = append(tags, tag)
		}
	}
	return types.Seeing{Follow: follow, Permissions: tags}
}

// target returns a path for the service, if it is within the bounds. A path in the home begins with
// ~/, so that it is not mistaken for a path of the host.
func (s *Server) target(doing, name string, allowed func(string) bool) (types.Target, error) {
	if name == "" {
		return types.Target{}, errors.New("path is empty")
	}
	inside := s.cfg.Bounds.inside(name)
	if !allowed(inside) {
		return types.Target{},
			fmt.Errorf("cannot %s %q: it is in no place that this sandbox grants; it may write to %s",
				doing, name, s.writable())
	}
	if rest, ok := strings.CutPrefix(inside, policy.Home.String()+"/"); ok {
		inside = "~/" + rest
	}
	return client.Target(inside), nil
}

func (s *Server) read(ctx context.Context, _ *mcp.CallToolRequest,
	in ReadInput) (*mcp.CallToolResult, error) {
	target, err := s.target("read", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, err
	}
	if in.Encoding != "" {
		return s.readBytes(ctx, target, in)
	}
	got, err := s.cfg.Client.Read(ctx, s.cfg.Sandbox, types.Read{
		Target: target, Seeing: s.seeing(in.Follow), Offset: in.Offset, Limit: in.Limit,
		SkipBytes: in.SkipBytes, Text: in.Text,
	})
	if err != nil {
		return nil, err
	}
	if got.Type == types.ReadImage {
		data, err := client.Content(got)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: data,
			MIMEType: got.MimeType}}}, nil
	}
	if got.Type == types.ReadBinary {
		return text(aboutBytes(got)), nil
	}
	if got.Lines != nil && got.Notice != "" {
		return partText(got.Content, got.Notice), nil
	}
	return text(got.Content), nil
}

// partText returns a part of a file, with a notice about the rest.
func partText(part, notice string) *mcp.CallToolResult {
	if part != "" && !strings.HasSuffix(part, "\n") {
		part += "\n"
	}
	return text(part + "[" + notice + "]")
}

// aboutBytes says what a file is that is no text, and how to have it.
func aboutBytes(r types.ReadResult) string {
	if r.Encoding != "" {
		return fmt.Sprintf(
			"[a text of %d bytes in %s; convert it with exec (iconv -f %s -t utf-8), or read its bytes with encoding base64]",
			r.Bytes, r.Encoding, r.Encoding)
	}
	return fmt.Sprintf(
		"[a file of %d bytes that is no text in UTF-8; look at it with exec, read its bytes with encoding base64, or set text to lossy]",
		r.Bytes)
}

// bytesAtOnce is how many bytes of a file come at a time: 64 KiB of base64.
const bytesAtOnce = 48 << 10

// readBytes reads a part of a file's bytes.
func (s *Server) readBytes(ctx context.Context, target types.Target,
	in ReadInput) (*mcp.CallToolResult, error) {
	switch {
	case in.Encoding != string(types.Base64):
		return nil, fmt.Errorf("encoding %q is not base64", in.Encoding)
	case in.Offset != nil || in.Limit != nil || in.Text != "":
		return nil, errors.New(
			"offset, limit and text are for text, not for bytes with encoding; use skipBytes")
	}
	data, err := s.content(ctx, target, in.Follow)
	if err != nil {
		return nil, err
	}
	first := 0
	if in.SkipBytes != nil {
		first = *in.SkipBytes
	}
	if first < 0 || first > len(data) {
		return nil, fmt.Errorf("skipBytes %d is not from 0 to %d, the size of the file", first,
			len(data))
	}
	end := min(first+bytesAtOnce, len(data))
	part := base64.StdEncoding.EncodeToString(data[first:end])
	if end == len(data) {
		return text(part), nil
	}
	return partText(part,
		fmt.Sprintf("Bytes %d to %d of %d are shown. Read on with skipBytes %d.", first+1, end,
			len(data), end)), nil
}

// content reads the bytes of a file.
func (s *Server) content(ctx context.Context, target types.Target, follow bool) ([]byte, error) {
	got, err := s.cfg.Client.Read(ctx, s.cfg.Sandbox,
		types.Read{Target: target, Seeing: s.seeing(follow), Binary: true})
	if err != nil {
		return nil, err
	}
	return client.Content(got)
}

// change waits until no other call of this server changes a file. The caller calls done when it has
// changed its own.
func (s *Server) change(ctx context.Context) (done func(), err error) {
	select {
	case s.changing <- struct{}{}:
		return func() { <-s.changing }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Server) write(ctx context.Context, _ *mcp.CallToolRequest,
	in WriteInput) (*mcp.CallToolResult, error) {
	target, err := s.target("write", in.Path, s.cfg.Bounds.writes)
	if err != nil {
		return nil, err
	}
	done, err := s.change(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	got, err := s.cfg.Client.Write(ctx, s.cfg.Sandbox, types.Write{
		Target: target, Seeing: s.seeing(in.Follow), Content: in.Content,
		Encoding: types.Encoding(in.Encoding), Append: in.Append,
	})
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("%s: %d bytes written", oneLine(got.SandboxPath), got.Bytes)), nil
}

// maxEdit is the largest file that edit changes, in bytes.
const maxEdit = 4 << 20

// edit replaces a text that is in a file once. It goes by bytes, so what is not UTF-8 stays as it
// is.
func (s *Server) edit(ctx context.Context, _ *mcp.CallToolRequest,
	in EditInput) (*mcp.CallToolResult, error) {
	target, err := s.target("edit", in.Path, s.cfg.Bounds.writes)
	if err != nil {
		return nil, err
	}
	if in.Old == "" {
		return nil, errors.New(
			"oldText is empty: to add to a file, give a text that is there, or use write with append")
	}
	done, err := s.change(ctx) // what another call writes between our read and our write would be lost
	if err != nil {
		return nil, err
	}
	defer done()
	before, err := s.content(ctx, target, in.Follow)
	refused, is := errors.AsType[*client.Error](err)
	large := is && refused.Kind == types.TooLarge // for any read
	if err != nil && !large {
		return nil, err
	}
	if large || len(before) > maxEdit {
		return nil, fmt.Errorf("cannot edit %q: it has more than %d bytes; edit it with exec",
			in.Path, maxEdit)
	}
	switch n := bytes.Count(before, []byte(in.Old)); {
	case n == 0:
		return nil, fmt.Errorf(
			"cannot edit %q: oldText is not in it; read it again, and give the text exactly, with its spaces and line ends",
			in.Path)
	case n > 1:
		return nil, fmt.Errorf(
			"cannot edit %q: oldText is in it %d times; give more of what is around the one to replace",
			in.Path, n)
	}
	after := bytes.Replace(before, []byte(in.Old), []byte(in.New), 1)
	got, err := s.cfg.Client.Write(ctx, s.cfg.Sandbox, types.Write{
		Target: target, Seeing: s.seeing(in.Follow),
		Content: base64.StdEncoding.EncodeToString(after), Encoding: types.Base64,
	})
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("%s: edited; it has %d bytes", oneLine(got.SandboxPath), got.Bytes)),
		nil
}

// oneLine quotes a name that would look like several lines.
func oneLine(name string) string {
	if strings.ContainsFunc(name, unicode.IsControl) {
		return strconv.Quote(name)
	}
	return name
}

func (s *Server) list(ctx context.Context, _ *mcp.CallToolRequest,
	in ListInput) (*mcp.CallToolResult, error) {
	if in.Path == "" {
		in.Path = "."
	}
	target, err := s.target("list", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Client.ListEntries(ctx, s.cfg.Sandbox,
		types.Look{Target: target, Seeing: s.seeing(in.Follow)})
	if err != nil {
		return nil, err
	}
	var lines strings.Builder
	for _, e := range got.Entries {
		fmt.Fprintf(&lines, "%s %10d %s", e.Type, e.Size, oneLine(e.Name))
		if e.LinkTarget != "" {
			fmt.Fprintf(&lines, " -> %s", oneLine(e.LinkTarget))
		}
		lines.WriteByte('\n')
	}
	if got.Truncated {
		lines.WriteString("[there are more entries]\n")
	}
	if lines.Len() == 0 {
		lines.WriteString("[it is empty]\n")
	}
	return text(lines.String()), nil
}
