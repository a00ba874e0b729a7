package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net/http"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/strictjson"
	"github.com/daycare-run/sandbox/pathmap"
)

// decode reads a JSON body strictly: unknown keys, duplicate keys, wrong types and anything after
// the value are the caller's faults.
func (s *server) decode(req *http.Request, into any) error {
	body, err := readBody(req)
	if err != nil {
		return err
	}
	return decodeJSON(body, into, s.memory)
}

// decodeOptional is like decode, but accepts an empty body.
func (s *server) decodeOptional(req *http.Request, into any) error {
	body, err := readBody(req)
	if err != nil || len(body) == 0 {
		return err
	}
	return decodeJSON(body, into, s.memory)
}

func readBody(req *http.Request) ([]byte, error) {
	if kind := req.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return nil, fmt.Errorf("the body has Content-Type %q, not application/json: %w", kind,
				cerrdefs.ErrInvalidArgument)
		}
	}
	body, err := io.ReadAll(req.Body)
	if isTooLarge(err) {
		return nil, fmt.Errorf("the body is larger than the limit: %w", err)
	}
	if cerrdefs.IsResourceExhausted(err) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("the body was cut short: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	return body, nil
}

// decodeJSON reports only the first fault, without values: they may be secrets. What it decodes
// counts as memory, as text does.
func decodeJSON(text []byte, into any, memory *requestMemory) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("the body is empty; it has to be a JSON object: %w",
			cerrdefs.ErrInvalidArgument)
	}
	const root = "the body"
	values, err := strictjson.Count(text, root)
	if err != nil {
		return fmt.Errorf("%v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	if err := memory.take(values * strictjson.ValueBytes); err != nil {
		return err
	}
	faults := strictjson.Decode(text, into, strictjson.Options{Root: root, Secret: true})
	switch {
	case len(faults) == 0:
		return nil
	case faults[0].Kind == strictjson.Syntax:
		return fmt.Errorf("the body is not JSON: %v: %w", faults[0], cerrdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%v: %w", faults[0], cerrdefs.ErrInvalidArgument)
}

// pathOf returns a path that a body gives in one of two forms.
func pathOf(key, plain, encoded string) (string, error) {
	switch {
	case plain != "" && encoded != "":
		return "", fmt.Errorf("%s and %sBase64 are both set; give one: %w", key, key,
			cerrdefs.ErrInvalidArgument)
	case encoded != "":
		path, err := decodeBytes(key+"Base64", encoded, types.Base64)
		return string(path), err
	case plain == "":
		return "", fmt.Errorf("%s is empty: %w", key, cerrdefs.ErrInvalidArgument)
	}
	if err := pathmap.CheckControl(plain); err != nil {
		return "", fmt.Errorf("%s has to be given as %sBase64: %w", key, key, err)
	}
	return plain, nil
}

// decodeBytes decodes a string to bytes; key is for the message.
func decodeBytes(key, text string, encoding types.Encoding) ([]byte, error) {
	switch encoding {
	case types.Text:
		return []byte(text), nil
	case types.Base64:
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("%s is not base64: %v: %w", key, err,
				cerrdefs.ErrInvalidArgument)
		}
		return data, nil
	default:
		return nil, fmt.Errorf("the encoding %q of %s is not base64: %w", encoding, key,
			cerrdefs.ErrInvalidArgument)
	}
}
