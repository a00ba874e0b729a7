package strictjson

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxValues is how many values a text may have: list items and object members, at any depth. No
// command that Linux can start has that many words and variables, and no text of 1 MiB has that
// many items that are strings.
const MaxValues = 256 << 10

// ValueBytes is roughly the memory for reading a value, besides its text. It is small because
// values that occur in masses are.
const ValueBytes = 128

// Count returns how many values text has. If there are more than MaxValues, the error is a Fault
// that names the list or object with the first excess value, or root for the whole text. If text
// stops being JSON, the rest is not counted.
func Count(text []byte, root string) (values int, _ error) {
	in := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true))
	for {
		token, err := in.ReadToken()
		if err != nil {
			return values, nil // Decode reports what is wrong
		}
		depth := in.StackDepth()
		switch token.Kind() {
		case '{', '[':
			depth-- // a list or object belongs to its parent, not to itself
		case '}', ']':
			continue
		}
		if depth == 0 || isName(in) {
			continue
		}
		if values == MaxValues {
			return values, tooMany(holder(in), root)
		}
		values++
	}
}

// isName reports whether the token read last is the name of a member.
func isName(in *jsontext.Decoder) bool {
	kind, length := in.StackIndex(in.StackDepth())
	return kind == '{' && length%2 == 1
}

// holder returns the list or object that contains the value read last.
func holder(in *jsontext.Decoder) (field string) {
	level := 0
	for name := range in.StackPointer().Parent().Tokens() {
		level++
		if kind, _ := in.StackIndex(level); kind == '[' {
			field += "[" + name + "]"
		} else {
			field = Path(field, name)
		}
	}
	return field
}

// count counts one more value, of a list or object.
func (d *decoder) count(field string) error {
	if d.values == MaxValues {
		d.faults = append(d.faults, tooMany(field, d.how.Root))
		return errEnough
	}
	d.values++
	return nil
}

func tooMany(field, root string) Fault {
	if field == "" {
		field = root
	}
	return Fault{Field: field, Says: fmt.Sprintf("the document has more than %d values", MaxValues)}
}
