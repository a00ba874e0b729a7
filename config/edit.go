package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/jsonc"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// AddE2BTemplate returns the text of a settings file with one more template. Everything else stays
// as it is, including comments and order. An empty text stands for a missing file.
func AddE2BTemplate(text []byte, name string, t E2BTemplate) ([]byte, error) {
	return add(text, t, "e2b", "templates", name)
}

// RemoveE2BTemplate returns the text of a settings file without a template.
func RemoveE2BTemplate(text []byte, name string) ([]byte, error) {
	object, missing, err := findObject(text, []string{"e2b", "templates"})
	if err != nil {
		return nil, err
	}
	m := object.member(name)
	if len(missing) > 0 || m == nil {
		return nil, fmt.Errorf("the file has no template %s", strictjson.Quote(name))
	}
	return checked(object.remove(text, *m))
}

// SetCluster returns the text of a settings file with cluster set; it fails if something is set
// there already. Everything else stays as it is. An empty text stands for a missing file.
func SetCluster(text []byte, c Cluster) ([]byte, error) {
	text = begun(text)
	before, wrong := load(text, nil)
	if len(wrong) > 0 {
		return nil, wrong
	}
	if !reflect.DeepEqual(before.Cluster, Default().Cluster) {
		return nil, errors.New("cluster is set there already: remove it first")
	}
	object, _, err := findObject(text, nil)
	if err != nil {
		return nil, err
	}
	if m := object.member("cluster"); m != nil { // it only has defaults
		text = object.remove(text, *m)
	}
	return add(text, c, "cluster")
}

// begun returns a text to which something can be added.
func begun(text []byte) []byte {
	if len(bytes.TrimSpace(text)) == 0 {
		return []byte("{}\n")
	}
	return text
}

// add returns a text with a value added where the keys lead to, and with the missing objects on the
// way.
func add(text []byte, value any, keys ...string) ([]byte, error) {
	said, err := json.Marshal(value, json.OmitZeroStructFields(true))
	if err != nil {
		return nil, err
	}
	text = begun(text)
	last := len(keys) - 1
	object, missing, err := findObject(text, keys[:last])
	if err != nil {
		return nil, err
	}
	at := last - len(missing) // of the key that the object gets
	if at == last && object.member(keys[last]) != nil {
		return nil, fmt.Errorf("%s is there already: remove it first", strictjson.Quote(keys[last]))
	}
	for i := last; i > at; i-- {
		said = fmt.Appendf(nil, "{%s: %s}", strictjson.Quote(keys[i]), said)
	}
	return checked(object.insert(text, keys[at], said, 2*(at+1)))
}

// checked refuses a text that the service would not accept.
func checked(text []byte) ([]byte, error) {
	if _, wrong := load(text, nil); len(wrong) > 0 {
		return nil, fmt.Errorf("cannot use the settings then: %w", wrong)
	}
	return text, nil
}

// objectText says where an object is in a text: its first byte, and its members in order.
type objectText struct {
	begin   int
	members []member
}

type member struct {
	name             string
	begin, end, from int // begin and end of the whole member, and where its value begins
}

func (o objectText) member(name string) *member {
	for i := range o.members {
		if o.members[i].name == name {
			return &o.members[i]
		}
	}
	return nil
}

// findObject returns the object that the keys lead to, or else the last one on the way and the keys
// that are missing in it.
func findObject(text []byte, keys []string) (o objectText, missing []string, err error) {
	plain := jsonc.ToJSON(text) // of the same length, so offsets are the same
	for at := 0; ; keys = keys[1:] {
		if o, err = readObject(plain, at); err != nil {
			return objectText{}, nil, fmt.Errorf("cannot read the settings: %w", err)
		}
		if len(keys) == 0 {
			return o, nil, nil
		}
		m := o.member(keys[0])
		if m == nil {
			return o, keys, nil
		}
		at = m.from
	}
}

// readObject reads the object that begins at an offset, or after white space there.
func readObject(plain []byte, at int) (o objectText, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(plain[at:]))
	token, err := d.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return objectText{}, errors.New("it is empty")
	case err != nil:
		return objectText{}, err
	case token.Kind() != '{':
		return objectText{}, errors.New("there is no object where one should be")
	}
	o.begin = at + int(d.InputOffset()) - 1
	for d.PeekKind() == '"' {
		m := member{}
		name, err := d.ReadToken()
		if err != nil {
			return objectText{}, err
		}
		m.name = name.String()
		m.begin = at + int(d.InputOffset())
		m.begin = bytes.LastIndexByte(plain[:m.begin-1], '"')
		d.PeekKind()
		value, err := d.ReadValue()
		if err != nil {
			return objectText{}, err
		}
		m.end = at + int(d.InputOffset())
		m.from = m.end - len(value)
		o.members = append(o.members, m)
	}
	_, err = d.ReadToken()
	return o, err
}

// insert adds a member after the others.
func (o objectText) insert(text []byte, name string, value []byte, indent int) []byte {
	line := fmt.Sprintf("\n%s%s: %s", strings.Repeat(" ", indent), strictjson.Quote(name), value)
	if n := len(o.members); n > 0 {
		return splice(text, o.members[n-1].end, o.members[n-1].end, ","+line)
	}
	if text[o.begin+1] == '}' {
		line += "\n" + strings.Repeat(" ", indent-2)
	}
	return splice(text, o.begin+1, o.begin+1, line)
}

// remove removes a member with its comma, and with its line if nothing else is there.
func (o objectText) remove(text []byte, m member) []byte {
	plain := jsonc.ToJSON(text)
	begin, end := m.begin, m.end
	if rest := bytes.TrimLeft(plain[end:], " \t\r\n"); len(rest) > 0 && rest[0] == ',' {
		end = len(plain) - len(rest) + 1
	} else if last := o.members[len(o.members)-1]; last == m && len(o.members) > 1 {
		before := o.members[len(o.members)-2].end
		comma := before + bytes.IndexByte(plain[before:], ',')
		text = splice(text, comma, comma+1, "")
		begin, end = begin-1, end-1
	}
	from := bytes.LastIndexByte(text[:begin], '\n')
	if from >= 0 && len(bytes.TrimSpace(text[from:begin])) == 0 && end < len(text) &&
		text[end] == '\n' {
		begin = from
	}
	return splice(text, begin, end, "")
}

func splice(text []byte, from, to int, with string) []byte {
	return append(append(bytes.Clone(text[:from]), with...), text[to:]...)
}
