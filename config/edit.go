package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/jsonc"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// AddE2BTemplate returns the text of a settings file with one template more. All else in it stays as it is, comments and
// order too. An empty text is that of no file.
func AddE2BTemplate(text []byte, name string, t E2BTemplate) ([]byte, error) {
	value, err := json.Marshal(t, json.OmitZeroStructFields(true))
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	path := []string{"e2b", "templates", name}
	for i := range path {
		object, found, err := findObject(text, path[:i])
		if err != nil {
			return nil, err
		}
		if !found {
			continue // the last one that is there gets what is missing
		}
		if object.member(path[i]) != nil {
			if i == len(path)-1 {
				return nil, fmt.Errorf("there is a template %s already: remove it first", strictjson.Quote(name))
			}
			continue
		}
		for j := len(path) - 1; j > i; j-- {
			value = fmt.Appendf(nil, "{%s: %s}", strictjson.Quote(path[j]), value)
		}
		return checked(object.insert(text, path[i], value, 2*(i+1)))
	}
	return nil, errors.New("e2b.templates is no object")
}

// RemoveE2BTemplate returns the text of a settings file without a template.
func RemoveE2BTemplate(text []byte, name string) ([]byte, error) {
	object, found, err := findObject(text, []string{"e2b", "templates"})
	if err != nil {
		return nil, err
	}
	m := object.member(name)
	if !found || m == nil {
		return nil, fmt.Errorf("the file has no template %s", strictjson.Quote(name))
	}
	return checked(object.remove(text, *m))
}

// checked refuses a text that the service would not take.
func checked(text []byte) ([]byte, error) {
	if _, wrong := load(text, nil); len(wrong) > 0 {
		return nil, fmt.Errorf("cannot use the settings then: %w", wrong)
	}
	return text, nil
}

// objectText is where an object is in a text: its first byte, and its members in their order.
type objectText struct {
	begin   int
	members []member
}

type member struct {
	name             string
	begin, end, from int // of the whole, and where its value begins
}

func (o objectText) member(name string) *member {
	for i := range o.members {
		if o.members[i].name == name {
			return &o.members[i]
		}
	}
	return nil
}

// findObject finds the object that the keys lead to.
func findObject(text []byte, keys []string) (o objectText, found bool, err error) {
	plain := jsonc.ToJSON(text) // of the same length, so places are the same
	at := 0
	for i := 0; ; i++ {
		if o, err = readObject(plain, at); err != nil {
			return objectText{}, false, fmt.Errorf("cannot read the settings: %w", err)
		}
		if i == len(keys) {
			return o, true, nil
		}
		m := o.member(keys[i])
		if m == nil {
			return objectText{}, false, nil
		}
		at = m.from
	}
}

// readObject reads the object that begins at a place, or after white space there.
func readObject(plain []byte, at int) (o objectText, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(plain[at:]))
	token, err := d.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return objectText{}, errors.New("there is nothing in it")
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

// insert puts a member behind the others.
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

// remove takes a member away with the comma that goes with it, and its line if nothing else is there.
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
	if from >= 0 && len(bytes.TrimSpace(text[from:begin])) == 0 && end < len(text) && text[end] == '\n' {
		begin = from
	}
	return splice(text, begin, end, "")
}

func splice(text []byte, from, to int, with string) []byte {
	return append(append(bytes.Clone(text[:from]), with...), text[to:]...)
}
