package api

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/api/types"
)

// decode reads a JSON body strictly: unknown and duplicate keys, wrong types and anything after the
// value are the caller's faults.
func decode(req *http.Request, into any) error {
	body, err := readBody(req)
	if err != nil {
		return err
	}
	return decodeJSON(body, into)
}

// decodeOptional does what decode does when there is a body, and otherwise nothing.
func decodeOptional(req *http.Request, into any) error {
	body, err := readBody(req)
	if err != nil || len(body) == 0 {
		return err
	}
	return decodeJSON(body, into)
}

func readBody(req *http.Request) ([]byte, error) {
	if kind := req.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return nil, fmt.Errorf("the body has Content-Type %q, not application/json: %w", kind, cerrdefs.ErrInvalidArgument)
		}
	}
	body, err := io.ReadAll(req.Body)
	if isTooLarge(err) {
		return nil, fmt.Errorf("the body is larger than the limit: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the body was cut short: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
	return body, nil
}

func decodeJSON(text []byte, into any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("the body is empty; it has to be a JSON object: %w", cerrdefs.ErrInvalidArgument)
	}
	err := json.Unmarshal(text, into, json.RejectUnknownMembers(true), json.MatchCaseInsensitiveNames(false))
	of := reflect.TypeOf(into).Elem()
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case err == nil:
		return refuseNulls(text, of)
	case errors.Is(err, json.ErrUnknownName) && errors.As(err, &semantic):
		return fmt.Errorf("unknown key %s: %w", field(of, semantic.JSONPointer), cerrdefs.ErrInvalidArgument)
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntactic):
		return fmt.Errorf("key %s is given twice: %w", field(of, syntactic.JSONPointer), cerrdefs.ErrInvalidArgument)
	case errors.As(err, &semantic):
		return fmt.Errorf("%s cannot be a JSON %s: %w", field(of, semantic.JSONPointer), kindName(semantic.JSONKind), cerrdefs.ErrInvalidArgument)
	case errors.As(err, &syntactic) && syntactic.JSONPointer != "":
		return fmt.Errorf("the body is not JSON at %s: %v (byte %d): %w", field(of, syntactic.JSONPointer), syntactic.Err, syntactic.ByteOffset, cerrdefs.ErrInvalidArgument)
	default:
		return fmt.Errorf("the body is not JSON: %v: %w", err, cerrdefs.ErrInvalidArgument)
	}
}

// refuseNulls finds a null, which the decoder takes for a key that was left out: no request has one.
func refuseNulls(text []byte, of reflect.Type) error {
	if !bytes.Contains(text, []byte("null")) {
		return nil
	}
	for in := jsontext.NewDecoder(bytes.NewReader(text)); ; {
		token, err := in.ReadToken()
		if err != nil {
			return nil // the end: the text was decoded before
		}
		if token.Kind() == 'n' {
			return fmt.Errorf("%s cannot be null: leave the key out: %w", field(of, in.StackPointer()), cerrdefs.ErrInvalidArgument)
		}
	}
}

// plainKey is a key that may stand in a message as it is.
var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// field is the place of a value of this type, in the form that messages use: permissions.writeDirs[2].
func field(of reflect.Type, pointer jsontext.Pointer) string {
	name := ""
	for token := range pointer.Tokens() {
		if of != nil && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of != nil && of.Kind() == reflect.Slice {
			name, of = name+"["+token+"]", of.Elem()
			continue
		}
		of = member(of, token)
		if !plainKey.MatchString(token) {
			token = fmt.Sprintf("%.100q", token)
		}
		if name != "" {
			name += "."
		}
		name += token
	}
	if name == "" {
		return "the body"
	}
	return name
}

// member is the type of what an object of this type has under a key, or nil.
func member(of reflect.Type, key string) reflect.Type {
	if of == nil {
		return nil
	}
	switch of.Kind() {
	case reflect.Map:
		return of.Elem()
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
				return f.Type
			}
		}
	}
	return nil
}

func kindName(kind jsontext.Kind) string {
	if kind == 0 {
		return "value of this form"
	}
	return kind.String()
}

// pathOf is a path that a body names in one of two ways.
func pathOf(key, plain, encoded string) (string, error) {
	switch {
	case plain != "" && encoded != "":
		return "", fmt.Errorf("%s and %sBase64 are both set; give one: %w", key, key, cerrdefs.ErrInvalidArgument)
	case encoded != "":
		path, err := decodeBytes(key+"Base64", encoded, types.Base64)
		return string(path), err
	case plain == "":
		return "", fmt.Errorf("%s is empty: %w", key, cerrdefs.ErrInvalidArgument)
	default:
		return plain, nil
	}
}

// decodeBytes reads a string of bytes; key is for the message.
func decodeBytes(key, text string, encoding types.Encoding) ([]byte, error) {
	switch encoding {
	case types.Text:
		return []byte(text), nil
	case types.Base64:
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("%s is not base64: %v: %w", key, err, cerrdefs.ErrInvalidArgument)
		}
		return data, nil
	default:
		return nil, fmt.Errorf("the encoding %q of %s is not base64: %w", encoding, key, cerrdefs.ErrInvalidArgument)
	}
}
