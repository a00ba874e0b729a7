package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Kind is the kind of a fault.
type Kind int

// The kinds of faults.
const (
	Refused   Kind = iota // a value that was not accepted
	Unknown               // a key
	Duplicate             // a key
	Syntax                // the text is not JSON; Field is the place in it
)

// Fault is one thing that is wrong: the field, as a path such as docker.capAdd[1], and what is
// wrong with it.
type Fault struct {
	Field, Says string
	Kind        Kind
}

// Error returns the field and what is wrong with it, in one line.
func (f Fault) Error() string { return f.Field + ": " + f.Says }

// Faults are everything that is wrong, as one error.
type Faults []Fault

// Error returns the number of faults, and then each fault on its own line.
func (f Faults) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d fault", len(f))
	if len(f) > 1 {
		b.WriteByte('s')
	}
	for _, one := range f {
		b.WriteString("\n  " + one.Error())
	}
	return b.String()
}

// Add appends a fault for a field whose value cannot be used.
func (f *Faults) Add(field, format string, args ...any) {
	*f = append(*f, Fault{Field: field, Says: fmt.Sprintf(format, args...)})
}

func (d *decoder) refuse(kind Kind, field, format string, args ...any) error {
	if field == "" {
		field = d.how.Root
	}
	d.faults = append(d.faults, Fault{field, fmt.Sprintf(format, args...), kind})
	if len(d.faults) == maxFaults {
		return errEnough
	}
	return nil
}

func (d *decoder) mistyped(want reflect.Type, field string, raw jsontext.Value) error {
	got := brief(raw)
	if number := want.Kind() >= reflect.Int && want.Kind() <= reflect.Float64; d.how.Secret &&
		!(number && raw.Kind() == '0') {
		got = kindName(raw.Kind())
	}
	return d.refuse(Refused, field, "want %s, got %s", Want(want), got)
}

// syntax returns the fault for the place where the text stops being JSON, without the decoder's own
// words for it.
func (d *decoder) syntax(text []byte, err error) Fault {
	offset := int64(len(text))
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset, err = s.ByteOffset, s.Err
	}
	place := position(text, offset)
	if d.at != "" {
		place += ", near " + d.at
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Fault{place, "the JSON ends too early", Syntax}
	}
	return Fault{place, fmt.Sprintf("cannot be read as JSON: %v", err), Syntax}
}

func position(text []byte, offset int64) string {
	before := text[:min(offset, int64(len(text)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}

// plain are the characters that are safe in a message.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

// Path returns the path of name in field, which is empty for the whole text. A name that could
// garble a message is quoted.
func Path(field, name string) string {
	if name == "" || len(name) > 64 || strings.Trim(name, plain) != "" {
		name = Quote(name)
	}
	if field == "" {
		return name
	}
	return field + "." + name
}

// maxShown is how much of a value is shown in a message, in bytes before escaping.
const maxShown = 100

// Quote formats a value for a message: escaped, so that it stays on one line, and cut, so that it
// stays readable.
func Quote(value string) string {
	if len(value) > maxShown {
		return fmt.Sprintf("%q...", value[:maxShown])
	}
	return fmt.Sprintf("%q", value)
}

// brief formats a JSON value for a message, on one line.
func brief(raw jsontext.Value) string {
	if text, err := Text(raw); err == nil {
		return Quote(text)
	}
	compact := raw.Clone()
	if err := compact.Compact(jsontext.AllowDuplicateNames(true)); err != nil {
		return Quote(raw.String())
	}
	if len(compact) > maxShown {
		return strings.ToValidUTF8(string(compact[:maxShown]), "") + "..."
	}
	return compact.String()
}

// ErrKind is returned by UnmarshalJSON for a value of a different JSON kind than the type accepts.
var ErrKind = errors.New("is of another kind")

// Text returns the text of a JSON string, for a type that decodes itself from one; ErrKind for any
// other value.
func Text(raw []byte) (string, error) {
	if jsontext.Value(raw).Kind() != '"' {
		return "", ErrKind
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	return string(text), err
}

// Want returns what a value of a type has to be, in words for a message.
func Want(t reflect.Type) string {
	if own, ok := reflect.Zero(t).Interface().(interface{ Want() string }); ok {
		return own.Want()
	}
	switch t.Kind() {
	case reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return Want(t.Elem())
	case reflect.Slice:
		return "a list of " + plural(t.Elem())
	case reflect.Map:
		return "an object of " + plural(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// plural returns Want in the plural and without its article.
func plural(t reflect.Type) string {
	_, noun, _ := strings.Cut(Want(t), " ")
	if first, rest, ok := strings.Cut(noun, " of "); ok {
		return first + "s of " + rest
	}
	return noun + "s"
}

// kindName returns a kind of JSON value in words.
func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return kind.String()
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '[':
		return "a list"
	}
	return "an object"
}
