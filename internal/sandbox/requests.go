package sandbox

import (
	"io"
	"time"

	"github.com/daycare-run/sandbox/internal/policy"
)

// ReadRequest asks for a file's content, as it came.
type ReadRequest struct {
	// Path is relative to the working directory, begins with ~/, or is absolute.
	Path string
	// Offset is the first line, from 1; Limit is how many lines. 0 means not given. Both apply only to text.
	Offset, Limit int
	// Raw returns the whole text, without a cut or a notice; Binary returns the bytes, whatever they are.
	Raw, Binary bool
	// Room is asked for room for so many bytes before a file is read into memory of which the answer has more
	// than agents usually take. Read returns its error. Nil means that there is always room.
	Room func(bytes int) error
}

// ReadResult is a file's content. The fields are those that Daycare has.
type ReadResult struct {
	// IsText says that Content is text. Content that is not text and has no MimeType is just bytes.
	IsText bool
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
	// ResolvedPath is the file on the host, DisplayPath as an agent names it.
	ResolvedPath, DisplayPath string
}

// WriteRequest is a file to write, as it came.
type WriteRequest struct {
	// Path is absolute, or begins with ~/.
	Path string
	Body io.Reader
	// Append adds to the file; Exclusive refuses one that exists. They exclude each other.
	Append, Exclusive bool
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

// Explanation is the view that a call would get.
type Explanation struct {
	User       string
	WorkingDir string
	Runtime    string
	// Places are sorted by path; the longest that holds a path decides about it.
	Places []policy.Region
	// Home is where HOME points, and HomeWhy says why.
	Home, HomeWhy string
	// Network and Events say what the call reaches beyond files.
	Network, Events string
	// Fingerprint identifies the container; Warm says that it is running.
	Fingerprint string
	Warm        bool
}

// MountRequest is a further directory of the host, as a caller asks for it.
type MountRequest struct {
	Source   string // on the host, below one of allowedMountRoots
	Target   string // inside
	ReadOnly bool
}
