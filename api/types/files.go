package types

import "time"

// Target names a file or directory in the body of a file call: relative to the working directory,
// absolute, or as ~/… in the home. Exactly one of the two fields is set.
type Target struct {
	Path string `json:"path,omitempty"`
	// PathBase64 is for a path that is not UTF-8, or has control characters other than tab and
	// newline.
	PathBase64 string `json:"pathBase64,omitempty"`
}

// Seeing says how a file call finds its target.
type Seeing struct {
	// Follow follows a symbolic link that is the last component of the path. A link before it is
	// followed in any case.
	Follow bool `json:"follow,omitzero"`
	// Permissions, unless nil, are tags: the call sees and writes what a command with them does,
	// and not all that the sandbox holds.
	Permissions []string `json:"permissions,omitzero"`
}

// Look is the body of POST …/list and …/stat.
type Look struct {
	Target
	Seeing
}

// Read is the body of POST …/read.
type Read struct {
	Target
	Seeing
	// Offset is the first line, from 1; Limit is the number of lines. Both apply to text only.
	Offset *int `json:"offset,omitempty"`
	Limit  *int `json:"limit,omitempty"`
	// SkipBytes is how many bytes of the first line are left out.
	SkipBytes *int `json:"skipBytes,omitempty"`
	// Text is TextLossy to have as text what is not UTF-8.
	Text string `json:"text,omitempty"`
	// Raw returns a whole text; Binary returns the bytes, whatever they are.
	Raw    bool `json:"raw,omitzero"`
	Binary bool `json:"binary,omitzero"`
}

// TextLossy has U+FFFD for what is not UTF-8. Who writes such a text back destroys the file.
const TextLossy = "lossy"

// ReadType is the kind of content that a read found.
type ReadType string

// The types of content.
const (
	ReadText   ReadType = "text"
	ReadImage  ReadType = "image"
	ReadBinary ReadType = "binary"
)

// ReadResult is a file's content.
type ReadResult struct {
	Type ReadType `json:"type"`
	// Content is base64 unless it is text.
	Content string `json:"content"`
	// Bytes is the size of the file.
	Bytes int64 `json:"bytes"`
	// MimeType is set for images.
	MimeType string `json:"mimeType,omitempty"`
	// Encoding is set for bytes that say that they are a text: utf-16le, utf-16be, utf-32le or
	// utf-32be.
	Encoding string `json:"encoding,omitempty"`
	// Lines is set for text, and nil otherwise.
	*Lines
	// ResolvedPath is the path on the host, DisplayPath the path as an agent names it.
	ResolvedPath string `json:"resolvedPath"`
	DisplayPath  string `json:"displayPath"`
}

// Lines says how long a text is and how much of it was returned.
type Lines struct {
	TotalLines  int  `json:"totalLines"`
	OutputLines int  `json:"outputLines"`
	Truncated   bool `json:"truncated"`
	// TruncatedBy is "lines" or "bytes", or null.
	TruncatedBy *string `json:"truncatedBy"`
	// Next is how to read on where the text was cut, and Notice says so.
	Next   *ReadOn `json:"next,omitempty"`
	Notice string  `json:"notice,omitempty"`
}

// ReadOn is where a text goes on, as in Read.
type ReadOn struct {
	Offset    int `json:"offset"`
	SkipBytes int `json:"skipBytes"`
}

// Write is the body of POST …/write.
type Write struct {
	Target
	Seeing
	// Content is text, or base64 when Encoding says so.
	Content  string   `json:"content"`
	Encoding Encoding `json:"encoding,omitempty"`
	// Append adds to the file; Exclusive refuses a file that already exists.
	Append    bool `json:"append,omitzero"`
	Exclusive bool `json:"exclusive,omitzero"`
}

// Written says what a write or an upload wrote, and where.
type Written struct {
	Bytes int64 `json:"bytes"`
	// ResolvedPath is the path on the host, SandboxPath the path as an agent names it: ~/… in the
	// home.
	ResolvedPath string `json:"resolvedPath"`
	SandboxPath  string `json:"sandboxPath"`
}

// Entry is a name in a directory.
type Entry struct {
	// Name has U+FFFD for what is not UTF-8. NameBase64 has the exact name if it is not UTF-8 or
	// has control characters, which only Target.PathBase64 can have.
	Name       string `json:"name"`
	NameBase64 string `json:"nameBase64,omitempty"`
	// LinkTarget is what a symbolic link says, in the same two forms.
	LinkTarget       string `json:"linkTarget,omitempty"`
	LinkTargetBase64 string `json:"linkTargetBase64,omitempty"`
	// Type is file, directory, symlink, fifo, socket or device, or in a Listing mount: another file
	// system is mounted there on the host, which no call enters, and the other fields say nothing.
	Type string `json:"type"`
	Size int64  `json:"size"`
	// Mode is the permission bits in octal, such as 0644.
	Mode string `json:"mode"`
	// Mtime is in the years 1 to 9999: a time before or after them is told as their first or last
	// second.
	Mtime time.Time `json:"mtime"`
}

// Listing is a directory's entries, sorted by name.
type Listing struct {
	Path    string  `json:"path"`
	Entries []Entry `json:"entries"`
	// Truncated reports whether there are more entries.
	Truncated bool `json:"truncated"`
}

// Mkdir is the body of POST …/mkdir.
type Mkdir struct {
	Target
	// Parents also makes missing parent directories, and accepts a directory that already exists.
	Parents bool `json:"parents,omitzero"`
}

// Made is the answer of POST …/mkdir.
type Made struct {
	Path string `json:"path"`
}

// Move is the body of POST …/move. Each end is given in one of two forms, as in Target.
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
	// Recursive removes a directory together with its contents.
	Recursive bool `json:"recursive,omitzero"`
}

// Done is the answer of a call that has nothing to return.
type Done struct{}

// Explain is the body of POST …/explain: an exec's grants, what it wants to reach, and its home.
type Explain struct {
	In              In       `json:"in,omitempty"`
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
	// Places are sorted by path; the longest path that contains a file decides about it.
	Places []Place `json:"places"`
	// Home is where HOME points, and HomeWhy says why.
	Home    string `json:"home"`
	HomeWhy string `json:"homeWhy"`
	// Network and Events say what the call reaches beyond files.
	Network string `json:"network"`
	Events  string `json:"events"`
	// Processes are the tags of processes whose ports it reaches.
	Processes []string `json:"processes,omitempty"`
	// Secrets are its credentials.
	Secrets []SecretUse `json:"secrets,omitempty"`
	// Fingerprint identifies the container; Warm reports whether it is ready.
	Fingerprint string `json:"fingerprint"`
	Warm        bool   `json:"warm"`
	// Node is the host that holds the user; empty for a service that is the only one.
	Node string `json:"node,omitempty"`
}

// SecretUse is what becomes of a credential of a call.
type SecretUse struct {
	Name string `json:"name"`
	// Hosts are those whose traffic the service reads, to put the credential in.
	Hosts []string `json:"hosts,omitempty"`
	// Env is the variable that has the placeholder; empty for none.
	Env string `json:"env,omitempty"`
	// Unused says why the credential is not put in; empty if it is.
	Unused string `json:"unused,omitempty"`
}

// Place is a path inside the container, with everything below it.
type Place struct {
	Path string `json:"path"`
	// Mode is writable, readOnly, hidden or empty.
	Mode string `json:"mode"`
	Why  string `json:"why"`
}

// Unpacked says what PUT …/archive has written, and where.
type Unpacked struct {
	// Entries counts directories, files and links, and Bytes the content of the files.
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Skipped counts the FIFOs of the archive, which were not made.
	Skipped int64 `json:"skipped"`
	// SandboxPath is the directory as an agent names it: ~/… in the home.
	SandboxPath string `json:"sandboxPath"`
}
