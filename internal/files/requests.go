package files

import (
	"io"
	"io/fs"
	"time"
)

// Where names a file or directory for a file call, as it came.
type Where struct {
	// Path is relative to the working directory, begins with ~/, or is absolute. All bytes but NUL
	// may be in it.
	Path string
	// Follow follows a symbolic link that is the last component. A link before it is followed in
	// any case.
	Follow bool
	// Permissions, unless nil, are tags: the call sees and writes what a command with them does,
	// and not all that the sandbox holds.
	Permissions []string
}

// ReadRequest asks for a file's content, as it came.
type ReadRequest struct {
	Path        string // this and the next two are as in Where
	Follow      bool
	Permissions []string
	// Offset is the first line, from 1, and SkipBytes how many bytes of it are left out; Limit is
	// how many lines. 0 means not given. They apply only to text.
	Offset, SkipBytes, Limit int
	// Raw returns the whole text, without a cut; Binary returns the bytes, whatever they are. Lossy
	// takes as text what is not UTF-8, with U+FFFD in it.
	Raw, Binary, Lossy bool
	// Room is asked for room for so many bytes before a file is read into memory of which the
	// answer has more than agents usually take. Read returns its error. Nil means that there is
	// always room.
	Room func(bytes int) error
}

// ReadResult is a file's content. The fields are those that Daycare has.
type ReadResult struct {
	// IsText says that Content is text: UTF-8 without NUL, unless the caller wants it Lossy.
	// Content that is not text and has no MimeType is just bytes.
	IsText bool
	// Encoding is that of bytes which say themselves that they are a text: utf-16le, utf-16be,
	// utf-32le or utf-32be.
	Encoding string
	// Content is the text, or the bytes.
	Content []byte
	// Bytes is the size of the file.
	Bytes int64
	// MimeType is that of an image.
	MimeType string
	// TotalLines and OutputLines, Truncated and TruncatedBy ("lines", "bytes" or empty) are set for
	// text.
	TotalLines, OutputLines int
	Truncated               bool
	TruncatedBy             string
	// Next is how to read on where the text was cut, and Notice says so to an agent.
	Next   *ReadOn
	Notice string
	// ResolvedPath is the file on the host, DisplayPath as an agent names it.
	ResolvedPath, DisplayPath string
}

// ReadOn is where a text goes on, as in ReadRequest.
type ReadOn struct{ Offset, SkipBytes int }

// WriteRequest is a file to write, as it came.
type WriteRequest struct {
	Path        string // this and the next two are as in Where
	Follow      bool
	Permissions []string
	Body        io.Reader
	// Append adds to the file; Exclusive refuses one that exists. They exclude each other.
	Append, Exclusive bool
	// Mode is the permission bits of a file that does not replace another; 0 means 0644.
	Mode fs.FileMode
}

// Written says what was written and where.
type Written struct {
	Bytes int64
	// ResolvedPath is the file on the host, SandboxPath as an agent names it: ~/… in the home.
	ResolvedPath, SandboxPath string
}

// Download is an open file; the caller closes it.
type Download struct {
	io.ReadSeekCloser
	Name    string
	Size    int64
	ModTime time.Time
	Mode    fs.FileMode // permission bits
}

// Entry is one name in a directory. Name may be any bytes but NUL and the slash.
type Entry struct {
	Name    string
	Type    string // file, directory, symlink, fifo, socket or device
	Size    int64
	Mode    uint32 // permission bits
	ModTime time.Time
	// LinkTarget is what a symbolic link says.
	LinkTarget string
}

// Listing is a directory's entries by name.
type Listing struct {
	Path      string // as an agent names it
	Entries   []Entry
	Truncated bool // there are more
}
