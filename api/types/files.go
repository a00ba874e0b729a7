package types

import "time"

// Target names a file or directory, in the body of a file call: relative to the working directory,
// absolute, or from the home as ~/…. One of the two is set.
type Target struct {
	Path string `json:"path,omitempty"`
	// PathBase64 is for a path that is not UTF-8.
	PathBase64 string `json:"pathBase64,omitempty"`
}

// Read is the body of POST …/read.
type Read struct {
	Target
	// Offset is the first line, from 1; Limit is how many lines. They go with text.
	Offset *int `json:"offset,omitempty"`
	Limit  *int `json:"limit,omitempty"`
	// Raw gives a text whole; Binary gives the bytes, whatever they are.
	Raw    bool `json:"raw,omitzero"`
	Binary bool `json:"binary,omitzero"`
}

// ReadType says what a read has found.
type ReadType string

// What a read may find.
const (
	ReadText   ReadType = "text"
	ReadImage  ReadType = "image"
	ReadBinary ReadType = "binary"
)

// ReadResult is a file's content.
type ReadResult struct {
	Type ReadType `json:"type"`
	// Content is base64 unless it is text. What is not UTF-8 in a text is U+FFFD.
	Content string `json:"content"`
	// Bytes is the size of the file.
	Bytes int64 `json:"bytes"`
	// MimeType belongs to an image.
	MimeType string `json:"mimeType,omitempty"`
	// Lines belongs to a text, and is nil for all else.
	*Lines
	// ResolvedPath is the file on the host, DisplayPath as an agent names it.
	ResolvedPath string `json:"resolvedPath"`
	DisplayPath  string `json:"displayPath"`
}

// Lines says how much of a text there is, and how much came.
type Lines struct {
	TotalLines  int  `json:"totalLines"`
	OutputLines int  `json:"outputLines"`
	Truncated   bool `json:"truncated"`
	// TruncatedBy is "lines" or "bytes", or null.
	TruncatedBy *string `json:"truncatedBy"`
}

// Write is the body of POST …/write.
type Write struct {
	Target
	// Content is text, or base64 when Encoding says so.
	Content  string   `json:"content"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Append adds to the file; Exclusive refuses one that exists.
	Append    bool `json:"append,omitzero"`
	Exclusive bool `json:"exclusive,omitzero"`
}

// Written says what a write or an upload has written, and where.
type Written struct {
	Bytes int64 `json:"bytes"`
	// ResolvedPath is the file on the host, SandboxPath as an agent names it: ~/… in the home.
	ResolvedPath string `json:"resolvedPath"`
	SandboxPath  string `json:"sandboxPath"`
}

// Entry is a name in a directory.
type Entry struct {
	// Name has U+FFFD for what is not UTF-8; NameBase64 then has the name.
	Name       string `json:"name"`
	NameBase64 string `json:"nameBase64,omitempty"`
	// Type is file, directory, symlink, fifo, socket or device.
	Type string `json:"type"`
	Size int64  `json:"size"`
	// Mode is the permission bits in octal, such as 0644.
	Mode  string    `json:"mode"`
	Mtime time.Time `json:"mtime"`
}

// Listing is a directory's entries by name.
type Listing struct {
	Path    string  `json:"path"`
	Entries []Entry `json:"entries"`
	// Truncated says that there are more.
	Truncated bool `json:"truncated"`
}

// Mkdir is the body of POST …/mkdir.
type Mkdir struct {
	Target
	// Parents makes what is missing above it too, and takes a directory that exists.
	Parents bool `json:"parents,omitzero"`
}

// Made is the answer of POST …/mkdir.
type Made struct {
	Path string `json:"path"`
}

// Move is the body of POST …/move. Each end is named in one of two ways, as in Target.
type Move struct {
	From       string `json:"from,omitempty"`
	FromBase64 string `json:"fromBase64,omitempty"`
	To         string `json:"to,omitempty"`
	ToBase64   string `json:"toBase64,omitempty"`
	// Overwrite replaces a file at the new name.
	Overwrite bool `json:"overwrite,omitzero"`
}

// Remove is the body of POST …/remove.
type Remove struct {
	Target
	// Recursive removes a directory with what is in it.
	Recursive bool `json:"recursive,omitzero"`
}

// Done is the answer of a call that has nothing to tell.
type Done struct{}

// Explain is the body of POST …/explain: an exec's grants, what it wants to reach, and its home.
type Explain struct {
	Permissions     []string `json:"permissions,omitempty"`
	AllowedDomains  []string `json:"allowedDomains,omitempty"`
	PackageManagers []string `json:"packageManagers,omitempty"`
	Restrictions
	Home string `json:"home,omitempty"`
}

// Explanation is what a call with these grants would see and reach.
type Explanation struct {
	UserID     string `json:"userId"`
	WorkingDir string `json:"workingDir"`
	Runtime    string `json:"runtime"`
	// Places are sorted by path; the longest that holds a path decides about it.
	Places []Place `json:"places"`
	// Home is where HOME points, and HomeWhy says why.
	Home    string `json:"home"`
	HomeWhy string `json:"homeWhy"`
	// Network and Events say what the call reaches beyond files.
	Network string `json:"network"`
	Events  string `json:"events"`
	// Fingerprint identifies the container; Warm says that it is there.
	Fingerprint string `json:"fingerprint"`
	Warm        bool   `json:"warm"`
	// Node is the host that holds the user; empty for a service that is the only one.
	Node string `json:"node,omitempty"`
}

// Place is a path inside with all below it.
type Place struct {
	Path string `json:"path"`
	// Mode is writable, readOnly, hidden or empty.
	Mode string `json:"mode"`
	Why  string `json:"why"`
}
