package mcp

import (
	"context"
	"errors"
	"fmt"
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

// ReadOutput says what was read. Content is empty for an image, which is in the tool's result.
type ReadOutput struct {
	Path        string `json:"path"`
	Type        string `json:"type" jsonschema:"text or image"`
	Bytes       int64  `json:"bytes" jsonschema:"the size of the file"`
	TotalLines  int    `json:"totalLines,omitempty"`
	OutputLines int    `json:"outputLines,omitempty"`
	Truncated   bool   `json:"truncated,omitempty" jsonschema:"there is more; read on with offset"`
	MIMEType    string `json:"mimeType,omitempty"`
	Content     string `json:"content,omitempty" jsonschema:"of a text"`
}

// WriteInput is the input of write.
type WriteInput struct {
	Path    string `json:"path" jsonschema:"relative to the working directory, absolute, or from the home as ~/path; directories that are missing are made"`
	Content string `json:"content" jsonschema:"all of the file's text"`
	Append  bool   `json:"append,omitempty" jsonschema:"add to the end of the file instead of replacing it"`
}

// WriteOutput says what was written.
type WriteOutput struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// ListInput is the input of list.
type ListInput struct {
	Path string `json:"path,omitempty" jsonschema:"a directory: relative to the working directory, absolute, or from the home as ~/path; default the working directory"`
}

// ListOutput is a directory.
type ListOutput struct {
	Path      string        `json:"path"`
	Entries   []types.Entry `json:"entries"`
	Truncated bool          `json:"truncated,omitempty" jsonschema:"there are more entries"`
}

func (s *Server) addFiles() {
	addTool(s, "read", "Read a file", onlyReads, s.read,
		"Read a text or a picture in the sandbox's home, /tmp or mounts. A long text comes in parts: read on with offset. Read the system's files with exec.")
	addTool(s, "write", "Write a file", changes, s.write, "Write a whole text file. It may be in "+s.writable()+".")
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

func (s *Server) read(ctx context.Context, _ *mcp.CallToolRequest, in ReadInput) (*mcp.CallToolResult, ReadOutput, error) {
	target, err := s.target("read", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, ReadOutput{}, err
	}
	got, err := s.cfg.Client.Read(ctx, s.cfg.Sandbox, types.Read{Target: target, Offset: in.Offset, Limit: in.Limit})
	if err != nil {
		return nil, ReadOutput{}, err
	}
	out := ReadOutput{Path: got.DisplayPath, Type: string(got.Type), Bytes: got.Bytes, MIMEType: got.MimeType}
	if got.Type == types.ReadImage {
		data, err := client.Content(got)
		if err != nil {
			return nil, ReadOutput{}, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: data, MIMEType: got.MimeType}}}, out, nil
	}
	if got.Lines != nil {
		out.TotalLines, out.OutputLines, out.Truncated = got.TotalLines, got.OutputLines, got.Truncated
	}
	out.Content = got.Content
	return text(got.Content), out, nil
}

func (s *Server) write(ctx context.Context, _ *mcp.CallToolRequest, in WriteInput) (*mcp.CallToolResult, WriteOutput, error) {
	target, err := s.target("write", in.Path, s.cfg.Bounds.writes)
	if err != nil {
		return nil, WriteOutput{}, err
	}
	got, err := s.cfg.Client.Write(ctx, s.cfg.Sandbox, types.Write{Target: target, Content: in.Content, Append: in.Append})
	if err != nil {
		return nil, WriteOutput{}, err
	}
	return text(fmt.Sprintf("%s: %d bytes written", got.SandboxPath, got.Bytes)), WriteOutput{Path: got.SandboxPath, Bytes: got.Bytes}, nil
}

func (s *Server) list(ctx context.Context, _ *mcp.CallToolRequest, in ListInput) (*mcp.CallToolResult, ListOutput, error) {
	if in.Path == "" {
		in.Path = "."
	}
	target, err := s.target("list", in.Path, s.cfg.Bounds.reads)
	if err != nil {
		return nil, ListOutput{}, err
	}
	got, err := s.cfg.Client.ListDir(ctx, s.cfg.Sandbox, target.Path)
	if err != nil {
		return nil, ListOutput{}, err
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
	return text(lines.String()), ListOutput{Path: got.Path, Entries: got.Entries, Truncated: got.Truncated}, nil
}
