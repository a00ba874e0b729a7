package api

import (
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/utf8cut"
)

// textPiece is how much of a text is encoded at a time, in bytes.
const textPiece = 64 << 10

// largeText is a field of an answer that may be large. Encoded as a whole, it would take up to six
// times its length, for as long as nobody reads the answer.
type largeText struct {
	name, text string // UTF-8
	encoded    string // the name of the field for the encoding
	encoding   types.Encoding
}

// answerTexts answers with an object that has these fields and then those of rest, which has at
// least one.
func (s *server) answerTexts(w http.ResponseWriter, texts []largeText, rest any) {
	w.Header().Set("Content-Type", "application/json")
	if err := writeTexts(w, texts, rest); err != nil {
		s.cfg.Log.Debug().Err(err).Msg("cannot answer")
		s.cut = true
	}
}

func writeTexts(w io.Writer, texts []largeText, rest any) error {
	object, err := json.Marshal(rest, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	before := "{"
	for _, t := range texts {
		if err := writeText(w, before+`"`+t.name+`":"`, t.text); err != nil {
			return err
		}
		if before = `",`; t.encoding != types.Text {
			before = `","` + t.encoded + `":"` + string(t.encoding) + `",`
		}
	}
	_, err = io.WriteString(w, before+string(object[1:])+"\n")
	return err
}

// writeText writes before, and then text without the quotes around it.
func writeText(w io.Writer, before, text string) error {
	if _, err := io.WriteString(w, before); err != nil {
		return err
	}
	var quoted []byte
	for len(text) > 0 {
		end := len(text)
		if end > textPiece {
			end = utf8cut.Whole([]byte(text[:textPiece]))
		}
		quoted, _ = jsontext.AppendQuote(quoted[:0], text[:end])
		if _, err := w.Write(quoted[1 : len(quoted)-1]); err != nil {
			return err
		}
		text = text[end:]
	}
	return nil
}

// lazyList makes the items of a JSON list while encoding.
type lazyList[Item any] func(yield func(Item) bool)

// MarshalJSONTo implements json.MarshalerTo.
func (all lazyList[Item]) MarshalJSONTo(to *jsontext.Encoder) error {
	err := to.WriteToken(jsontext.BeginArray)
	var item Item // reused for all
	all(func(next Item) bool {
		if item = next; err == nil {
			err = json.MarshalEncode(to, &item)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return to.WriteToken(jsontext.EndArray)
}
