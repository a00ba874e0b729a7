package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestArchivesRoundTrip(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entries := []Entry{
		{Name: ".", Kind: Directory, Mode: 0o750},
		{Name: "caf\xe9\n", Kind: File, Mode: 0o600, Size: 6},
		{Name: "a", Kind: Directory, Mode: 0o755},
		{Name: "a/" + strings.Repeat("long", 60), Kind: File, Mode: 0o644},
		{Name: "a/link", Kind: Link, Text: "../../etc/\xff"},
		{Name: strings.TrimSuffix(strings.Repeat("d/", MaxDepth), "/"), Kind: Directory, Mode: 0o700},
	}
	left := LeftOut{Hidden: 1, Special: 2}
	var text bytes.Buffer
	w := NewWriter(&text)
	for _, e := range entries {
		e.ModTime = at
		if err := w.Add(e, strings.NewReader("secret and what grew meanwhile")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(left); err != nil {
		t.Fatal(err)
	}
	r, content := NewReader(io.MultiReader(&text, strings.NewReader(strings.Repeat("\x00", 10<<10)))), ""
	var got []Entry
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		e.Mode, content = e.Mode&0o777, content+string(part)
		if e.Kind == Link {
			e.Mode = 0
		}
		got = append(got, e)
	}
	if diff := cmp.Diff(entries, got); diff != "" || content != "secret" || r.LeftOut() != left {
		t.Errorf("%q, %v: %s", content, r.LeftOut(), diff)
	}
	if got, want := left.String(), "1 hidden entry, 2 FIFOs, sockets and devices"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// raw makes an archive of any headers, each with as many bytes as it says.
func raw(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func TestArchivesThatAreRefused(t *testing.T) {
	file := func(name string) []byte { return raw(t, tar.Header{Name: name, Typeflag: tar.TypeReg}) }
	whole := raw(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 5000})
	for name, tt := range map[string]struct {
		text []byte
		want string
	}{
		"..":             {file(".."), `".."`},
		"up":             {file("a/../../b"), `the name "a/../../b" has the component ".."`},
		"absolute":       {file("/etc/passwd"), `"/etc/passwd" is absolute`},
		"dotted":         {file("./../b"), `".."`},
		"two slashes":    {file("a//b"), "empty"},
		"dot":            {file("a/./b"), `"."`},
		"long component": {file(strings.Repeat("x", 256)), "256 bytes"},
		"long name":      {file(strings.Repeat("x/", 2100) + "x"), "4201 bytes"},
		"deep":           {file(strings.Repeat("x/", MaxDepth) + "x"), "deeper than 128"},
		"hard link":      {raw(t, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), `"a" is a hard link to "/etc/passwd"`},
		"device":         {raw(t, tar.Header{Name: "a", Typeflag: tar.TypeBlock}), `"a" is a device`},
		"character":      {raw(t, tar.Header{Name: "a", Typeflag: tar.TypeChar}), `"a" is a device`},
		"unknown":        {raw(t, tar.Header{Name: "a", Typeflag: 'Z'}), `"a" is of the type`},
		"empty link":     {raw(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink}), "which no link can"},
		"a file as dir":  {file("."), `"." is no directory`},
		"cut":            {whole[:2000], "cut short"},
		"garbage":        {[]byte(strings.Repeat("garbage ", 200)), "no valid tar"},
		"rest":           {append(raw(t), make([]byte, maxRest+1)...), "after the end"},
		"failed":         {raw(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{failed: "the disk\xff"}}), "ends early: the disk"},
		"counts":         {raw(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"DAYCARE.hidden": "-1"}}), "DAYCARE.hidden"},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(bytes.NewReader(tt.text))
			var err error
			for err == nil {
				if _, err = r.Next(); err == nil {
					_, err = io.Copy(io.Discard, r)
				}
			}
			if !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// A sparse file of a few bytes says that it has as many as a disk.
func TestSparseFilesAreRefused(t *testing.T) {
	text := raw(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 5, PAXRecords: map[string]string{
		"XXX.sparse.map": "0,5", "XXX.sparse.numblocks": "1", "XXX.sparse.size": "1099511627776",
	}})
	sparse := bytes.ReplaceAll(text, []byte("XXX.sparse."), []byte("GNU.sparse.")) // which archive/tar does not write
	if e, err := NewReader(bytes.NewReader(sparse)).Next(); !cerrdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `"a" is a sparse file`) {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestTooManyEntries(t *testing.T) {
	r := NewReader(&endless{head: raw(t, tar.Header{Name: "a", Typeflag: tar.TypeReg})[:512]})
	n := 0
	var err error
	for err == nil {
		_, err = r.Next()
		n++
	}
	if n != MaxEntries+1 || !cerrdefs.IsInvalidArgument(err) {
		t.Errorf("%d entries: %v", n, err)
	}
}

// endless is an archive with the same entry again and again.
type endless struct {
	head []byte
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.head[e.at:])
	e.at = (e.at + n) % len(e.head)
	return n, nil
}

func TestFIFOsAreSkipped(t *testing.T) {
	r := NewReader(bytes.NewReader(raw(t, tar.Header{Name: "f", Typeflag: tar.TypeFifo}, tar.Header{Name: "./a/", Typeflag: tar.TypeDir, Mode: 0o7755})))
	e, err := r.Next()
	if err != nil || e.Name != "a" || e.Mode != 0o755 || r.Skipped() != 1 {
		t.Errorf("%+v, %d, %v", e, r.Skipped(), err)
	}
}

// An archive whose making fails has no end, and says why.
func TestAnArchiveThatFails(t *testing.T) {
	var text bytes.Buffer
	w := NewWriter(&text)
	err := w.Add(Entry{Name: "a", Kind: File, Size: 10}, strings.NewReader("short"))
	if !errors.Is(err, ErrShorter) || w.Fail("x") == nil {
		t.Errorf("%v", err)
	}
	text.Reset()
	w = NewWriter(&text)
	if err := errors.Join(w.Add(Entry{Name: "a", Kind: File, Size: 5}, strings.NewReader("whole")), w.Fail("the disk")); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&text)
	_, first := r.Next()
	if _, err := r.Next(); first != nil || err == nil || !strings.Contains(err.Error(), "ends early: the disk") {
		t.Errorf("%v, %v", first, err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReader(bytes.NewReader(text))
		for {
			e, err := r.Next()
			if err != nil {
				return
			}
			if Check(e.Name) != nil || e.Mode&^0o777 != 0 || e.Size < 0 {
				t.Errorf("%+v", e)
			}
			if n, err := io.Copy(io.Discard, r); err == nil && (n > int64(len(text)) || n != e.Size) {
				t.Errorf("%d bytes of %+v", n, e)
			}
		}
	})
}
