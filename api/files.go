package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"unicode/utf8"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/sandbox"
)

func read(ctx context.Context, service Service, id string, body apitypes.Read) (apitypes.ReadResult, error) {
	r := sandbox.ReadRequest{Raw: body.Raw, Binary: body.Binary}
	var err error
	if r.Path, err = pathOf("path", body.Path, body.PathBase64); err != nil {
		return apitypes.ReadResult{}, err
	}
	if r.Offset, err = lineNumber("offset", body.Offset); err != nil {
		return apitypes.ReadResult{}, err
	}
	if r.Limit, err = lineNumber("limit", body.Limit); err != nil {
		return apitypes.ReadResult{}, err
	}
	found, err := service.Read(ctx, id, r)
	if err != nil {
		return apitypes.ReadResult{}, err
	}
	return readResult(found), nil
}

// lineNumber is 0 for what is not given, as the facade has it.
func lineNumber(key string, n *int) (int, error) {
	if n == nil {
		return 0, nil
	}
	if *n < 1 {
		return 0, fmt.Errorf("%s %d is less than 1: %w", key, *n, cerrdefs.ErrInvalidArgument)
	}
	return *n, nil
}

func readResult(r sandbox.ReadResult) apitypes.ReadResult {
	out := apitypes.ReadResult{
		Type: apitypes.ReadType(r.Type), Bytes: r.Bytes, MimeType: r.MimeType,
		ResolvedPath: r.ResolvedPath, DisplayPath: r.DisplayPath,
	}
	if r.Type != sandbox.ReadText {
		out.Content = base64.StdEncoding.EncodeToString(r.Content)
		return out
	}
	out.Content = string(r.Content)
	out.Lines = &apitypes.Lines{TotalLines: r.TotalLines, OutputLines: r.OutputLines, Truncated: r.Truncated}
	if r.TruncatedBy != "" {
		out.TruncatedBy = &r.TruncatedBy
	}
	return out
}

func write(ctx context.Context, service Service, id string, body apitypes.Write) (apitypes.Written, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return apitypes.Written{}, err
	}
	content, err := decodeBytes("content", body.Content, body.Encoding)
	if err != nil {
		return apitypes.Written{}, err
	}
	written, err := service.Write(ctx, id, sandbox.WriteRequest{
		Path: path, Content: content, Append: body.Append, Exclusive: body.Exclusive,
	})
	return apitypes.Written(written), err
}

func list(ctx context.Context, service Service, id string, body apitypes.Target) (apitypes.Listing, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return apitypes.Listing{}, err
	}
	found, err := service.ListDir(ctx, id, path)
	if err != nil {
		return apitypes.Listing{}, err
	}
	out := apitypes.Listing{Path: found.Path, Entries: make([]apitypes.Entry, len(found.Entries)), Truncated: found.Truncated}
	for i, e := range found.Entries {
		out.Entries[i] = entry(e)
	}
	return out, nil
}

func stat(ctx context.Context, service Service, id string, body apitypes.Target) (apitypes.Entry, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return apitypes.Entry{}, err
	}
	found, err := service.Stat(ctx, id, path)
	if err != nil {
		return apitypes.Entry{}, err
	}
	return entry(found), nil
}

func entry(e sandbox.Entry) apitypes.Entry {
	out := apitypes.Entry{Name: e.Name, Type: e.Type, Size: e.Size, Mode: fmt.Sprintf("%04o", e.Mode), Mtime: e.ModTime.UTC()}
	if !utf8.ValidString(e.Name) {
		out.NameBase64 = base64.StdEncoding.EncodeToString([]byte(e.Name))
	}
	return out
}

func mkdir(ctx context.Context, service Service, id string, body apitypes.Mkdir) (apitypes.Made, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return apitypes.Made{}, err
	}
	return apitypes.Made{Path: path}, service.Mkdir(ctx, id, path, body.Parents)
}

func move(ctx context.Context, service Service, id string, body apitypes.Move) (apitypes.Done, error) {
	from, err := pathOf("from", body.From, body.FromBase64)
	if err != nil {
		return apitypes.Done{}, err
	}
	to, err := pathOf("to", body.To, body.ToBase64)
	if err != nil {
		return apitypes.Done{}, err
	}
	return apitypes.Done{}, service.Move(ctx, id, sandbox.MoveRequest{From: from, To: to, Overwrite: body.Overwrite})
}

func remove(ctx context.Context, service Service, id string, body apitypes.Remove) (apitypes.Done, error) {
	path, err := pathOf("path", body.Path, body.PathBase64)
	if err != nil {
		return apitypes.Done{}, err
	}
	return apitypes.Done{}, service.Remove(ctx, id, path, body.Recursive)
}
