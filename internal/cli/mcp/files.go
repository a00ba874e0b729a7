package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/policy"
)

// ReadInput is the input of read.
type ReadInput struct {
	Path   string `json:"path" jsonschema:"relative to the working directory, absolute, or from the home as ~/path"`
	Offset *int   `json:"offset,omitempty" jsonschema:"the first line to read, from 1"`
	Limit  *int   `json:"limit,omitempty" jsonschema:"how many lines to read; at most 2000 come at a time"`
}

// WriteInput is the input of write.
type WriteInput struct {
	Path    string `json:"path" jsonschema:"relative to the working directory, absolute, or from the home as ~/path; directories that are missing are made"`
	Content string `json:"content" jsonschema:"all of the file's text"`
	Append  bool   `json:"append,omitempty" jsonschema:"add to the end of the file instead of replacing it"`
}

// EditInput is the input of edit.
type EditInput struct {
	Path string `json:"path" jsonschema:"a text file: relative to the working directory, absolute, or from the home as ~/path"`
	Old  string `json:"oldText" jsonschema:"the text to replace, exactly as it is in the file; it must be there once, so give enough of what is around it"`
	New  string `json:"newText" jsonschema:"the text in its place; may be empty"`
}

// ListInput is the input of list.
type ListInput struct {
	Path string `json:"path,omitempty" jsonschema:"a directory: relative to the working directory, absolute, or from the home as ~/path; default the working directory"`
}

func (s *Server) addFiles() {
	addTool(s, "read", "Read a file", onlyReads, s.read,
		"Read a text or a picture in the sandbox's home, /tmp or mounts. A long text comes in parts: read on with offset. Read the system's files with exec.")
	addTool(s, "write", "Write a file", changes, s.write, "Write a whole text file. It may be in "+s.writable()+".")
	addTool(s, "edit", "Edit a file", changes, s.edit,
		"Replace a text in a file by another one. The text must be there exactly once. The file may be in "+s.writable()+".")
	addTool(s, "list", "List a directory", onlyReads, s.list, "List what is in a directory of the sandbox's home, /tmp or mounts.")
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

// target returns a path for the service, if it is within the bounds. A path in the home begins with ~/, so that it
// is not mistaken for a path of the host.
func (s *Server) target(doing, name string, allowed func(string) bool) (types.Target, error) {
	if name == "" {
		return types.Target{}, errors.New("path is empty")
	}
	inside := s.cfg.Bounds.inside(name)
	if !allowed(inside) {
		return types.Target{}, fmt.Errorf("cannot %s %q: it is in no place that this sandbox grants; it may write to %s", doing, name, s.writable())
	}
	if rest, ok := strings.CutPrefix(inside, policy.Home.String()+"/"); ok {
		inside = "~/" + rest
	}
	return client.Target(inside), nil
}

func (s *Server) read(ctx context.Context, _ *mcp.CallToolRequest, in ReadInput) (*mcp.CallToolResult, error) {
	target, err := s.target("read", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Client.Read(ctx, s.cfg.Sandbox, types.Read{Target: target, Offset: in.Offset, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	if got.Type == types.ReadImage {
		data, err := client.Content(got)
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: data, MIMEType: got.MimeType}}}, nil
	}
	result := text(got.Content)
	if got.Lines != nil && got.Truncated {
		first := 1
		if in.Offset != nil {
			first = *in.Offset
		}
		notice := fmt.Sprintf("[lines %d to %d of %d; read on with offset]", first, first+got.OutputLines-1, got.TotalLines)
		result.Content = append(result.Content, &mcp.TextContent{Text: notice})
	}
	return result, nil
}

func (s *Server) write(ctx context.Context, _ *mcp.CallToolRequest, in WriteInput) (*mcp.CallToolResult, error) {
	target, err := s.target("write", in.Path, s.cfg.Bounds.writes)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Client.Write(ctx, s.cfg.Sandbox, types.Write{Target: target, Content: in.Content, Append: in.Append})
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("%s: %d bytes written", got.SandboxPath, got.Bytes)), nil
}

// maxEdit is the largest file that edit changes, in bytes.
const maxEdit = 4 << 20

// edit replaces a text that is in a file once. It goes by bytes, so what is not UTF-8 stays as it is.
func (s *Server) edit(ctx context.Context, _ *mcp.CallToolRequest, in EditInput) (*mcp.CallToolResult, error) {
	target, err := s.target("edit", in.Path, s.cfg.Bounds.writes)
	if err != nil {
		return nil, err
	}
	if in.Old == "" {
		return nil, errors.New("oldText is empty: to add to a file, give a text that is there, or use write with append")
	}
	before, err := s.content(ctx, target.Path)
	if err != nil {
		return nil, err
	}
	switch n := bytes.Count(before, []byte(in.Old)); {
	case n == 0:
		return nil, fmt.Errorf("cannot edit %q: oldText is not in it; read it again, and give the text exactly, with its spaces and line ends", in.Path)
	case n > 1:
		return nil, fmt.Errorf("cannot edit %q: oldText is in it %d times; give more of what is around the one to replace", in.Path, n)
	}
	after := bytes.Replace(before, []byte(in.Old), []byte(in.New), 1)
	got, err := s.cfg.Client.Upload(ctx, s.cfg.Sandbox, target.Path, bytes.NewReader(after), false)
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("%s: edited; it has %d bytes", got.SandboxPath, got.Bytes)), nil
}

// content reads a file that is to be edited.
func (s *Server) content(ctx context.Context, name string) ([]byte, error) {
	file, err := s.cfg.Client.Download(ctx, s.cfg.Sandbox, name, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxEdit+1))
	if err == nil && len(data) > maxEdit {
		err = fmt.Errorf("cannot edit %q: it has more than %d bytes; edit it with exec", name, maxEdit)
	}
	return data, err
}

func (s *Server) list(ctx context.Context, _ *mcp.CallToolRequest, in ListInput) (*mcp.CallToolResult, error) {
	if in.Path == "" {
		in.Path = "."
	}
	target, err := s.target("list", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, err
	}
	got, err := s.cfg.Client.ListDir(ctx, s.cfg.Sandbox, target.Path)
	if err != nil {
		return nil, err
	}
	var lines strings.Builder
	for _, e := range got.Entries {
		fmt.Fprintf(&lines, "%s %10d %s\n", e.Type, e.Size, e.Name)
	}
	if got.Truncated {
		lines.WriteString("[there are more entries]\n")
	}
	if lines.Len() == 0 {
		lines.WriteString("[it is empty]\n")
	}
	return text(lines.String()), nil
}
