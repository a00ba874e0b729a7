package e2b

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// countingReader counts what was read of a body.
type countingReader struct {
	io.Reader
	n int
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}

// sendForm calls the surface without a connection, and returns how much of the body was read, too.
func (b *box) sendForm(text string) (status int, answer string, read int) {
	b.t.Helper()
	body := &countingReader{Reader: strings.NewReader(text)}
	req := httptest.NewRequestWithContext(b.t.Context(), "POST", "/files", body)
	req.Header = b.header()
	req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	w := httptest.NewRecorder()
	b.surface.ServeHTTP(w, req)
	return w.Code, w.Body.String(), body.n
}

const (
	filePart  = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n"
	otherPart = "--b\r\nContent-Disposition: form-data; name=\"other\"\r\n"
	formEnd   = "\r\n--b--\r\n"
)

// TestHeadersOfParts have a bound, however they are cut into lines and whichever part has them; what is within it is passed over.
func TestHeadersOfParts(t *testing.T) {
	b := newLab(t).create(`{}`)
	within := maxPartHeader - len("\r\n"+filePart) - len("X: \r\n") - len("\r\n")
	long := func(n int) string { return "X: " + strings.Repeat("x", n) + "\r\n" }
	for name, tt := range map[string]struct {
		form string
		want int
	}{
		"one long line":      {filePart + long(1<<20) + "\r\nx" + formEnd, http.StatusBadRequest},
		"many lines":         {filePart + strings.Repeat("Name: value\r\n", 1<<20/13) + "\r\nx" + formEnd, http.StatusBadRequest},
		"a continued line":   {filePart + "X: x\r\n" + strings.Repeat(" x\r\n", 1<<18) + "\r\nx" + formEnd, http.StatusBadRequest},
		"of what is skipped": {otherPart + long(1<<20) + "\r\nx\r\n" + filePart + "\r\nx" + formEnd, http.StatusBadRequest},
		"of a later part":    {filePart + "\r\nx\r\n" + filePart + long(1<<20) + "\r\nx" + formEnd, http.StatusBadRequest},
		"the largest":        {filePart + long(within) + "\r\nx" + formEnd, http.StatusOK},
		"a large one each":   {strings.Repeat(filePart+long(within)+"\r\nx\r\n", 20) + filePart + "\r\nx" + formEnd, http.StatusOK},
	} {
		status, answer, read := b.sendForm(tt.form)
		if status != tt.want {
			t.Errorf("%s: %d %.300s", name, status, answer)
		}
		if tt.want == http.StatusBadRequest && (!strings.Contains(answer, "a part of the form has a header of more than 65536 bytes") || read > maxPartHeader+formBuffer) {
			t.Errorf("%s: %.300s, after %d of %d bytes", name, answer, read, len(tt.form))
		}
	}
}

// TestPartsThatAreSkipped may be larger than a header may.
func TestPartsThatAreSkipped(t *testing.T) {
	b := newLab(t).create(`{}`)
	large := "\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	if status, answer, _ := b.sendForm(otherPart + large + filePart + "\r\nof f\r\n" + otherPart + large + "--b--"); status != http.StatusOK {
		t.Errorf("%d %.300s", status, answer)
	}
	if status, text := get(b, "/home/user/f"); status != http.StatusOK || text != "of f" {
		t.Errorf("%d %.300s", status, text)
	}
	if status, answer, _ := b.sendForm(otherPart + large); status != http.StatusBadRequest || !strings.Contains(answer, "the form is broken") {
		t.Errorf("%d %.300s", status, answer)
	}
}
