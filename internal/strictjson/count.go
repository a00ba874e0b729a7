package strictjson

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxValues is how many values a text may have: items of lists and members of objects, at any depth. No command that Linux can
// start has as many words and variables, and no text of 1 MiB as many items that are strings.
const MaxValues = 256 << 10

// ValueBytes is about what a value takes in memory while it is read, beside its text: small as those are of which there can be many.
const ValueBytes = 128

// Count returns how many values text has. One that has more than MaxValues is a Fault, which names the list or object with the
// first that is too many, or root for the whole. Where text is no longer JSON, the rest is not counted.
func Count(text []byte, root string) (values int, _ error) {
	in := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true))
	for {
		token, err := in.ReadToken()
		if err != nil {
			return values, nil // Decode says what is wrong
		}
		depth := in.StackDepth()
		switch token.Kind() {
		case '{', '[':
			depth-- // the value is in what has it, not in itself
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

// isName reports whether what was read last is the name of a member.
func isName(in *jsontext.Decoder) bool {
	kind, length := in.StackIndex(in.StackDepth())
	return kind == '{' && length%2 == 1
}

// holder is the list or object that has the value that was read last.
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

// count takes one value more, of a list or object.
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
