package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func readCommand(a *app) *cobra.Command {
	var r types.Read
	var offset, limit, skip int
	var lossy bool
	cmd := &cobra.Command{
		Use:   "read --user USER [flags] PATH",
		Short: "Print a file of a sandbox",
		Long: `read prints a file, as an agent would read it. PATH is relative to the working directory, absolute
inside, or from the home as '~/…' (quoted, because the shell would put your own home there).

A long text is cut, and a notice on stderr says how to go on; --raw prints all of it. Of an image, of what is
not UTF-8, or of any file with --binary, the bytes are printed. What is printed whole may have 32 MiB at most. To
copy a file of any size as it is, use "sandbox cp".`,
		Example: `  sandbox read --user alice notes.txt
  sandbox read --user alice --offset 2001 --limit 500 '~/logs/build.log'
  sandbox read --user alice --binary model.bin | sha256sum`,
		Args: cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.IntVar(&offset, "offset", 1, "first line to print, from 1")
	flags.IntVar(&limit, "limit", 0, "how many lines to print (default: as many as fit)")
	flags.IntVar(&skip, "skip-bytes", 0, "how many bytes of the first line to leave out")
	flags.BoolVar(&lossy, "lossy", false, "print as text what is not UTF-8, with U+FFFD in it")
	flags.BoolVarP(&r.Follow, "dereference", "L", false,
		"if PATH is a symbolic link, print what it leads to")
	flags.BoolVar(&r.Raw, "raw", false, "print all of a text of at most 32 MiB, without cutting it")
	flags.BoolVar(&r.Binary, "binary", false, "print the bytes, whatever they are, of a file of at most 32 MiB")
	return asks(a, &target{}, cmd,
		func(ctx context.Context, c *client.Client, id string, args []string) (types.ReadResult,
			error) {
			if flags.Changed("offset") {
				r.Offset = &offset
			}
			if flags.Changed("limit") {
				r.Limit = &limit
			}
			if flags.Changed("skip-bytes") {
				r.SkipBytes = &skip
			}
			if lossy {
				r.Text = types.TextLossy
			}
			r.Target = client.Target(args[0])
			return c.Read(ctx, id, r)
		}, func(out io.Writer, result types.ReadResult) error {
			return printContent(out, cmd.ErrOrStderr(), result)
		})
}

func printContent(out, notices io.Writer, r types.ReadResult) error {
	content, err := client.Content(r)
	if err != nil {
		return fmt.Errorf("cannot read the service's answer: %w", err)
	}
	if r.Type != types.ReadText && width(out) > 0 {
		return fmt.Errorf(
			"this is %s of %s; a terminal cannot show its bytes: send them elsewhere with > or |",
			describeType(r), bytesText(r.Bytes))
	}
	if _, err := out.Write(content); err != nil {
		return err
	}
	if r.Lines != nil && r.Truncated {
		on := "--raw prints all of them, " + flagsOf(r.Next) + " the next"
		if r.Bytes > maxWhole {
			on = flagsOf(r.Next) + " prints the next"
		}
		fmt.Fprintf(notices, "sandbox: %d of %d lines; %s\n", r.OutputLines, r.TotalLines, on)
	}
	return nil
}

// maxWhole is the largest file that the service returns whole.
const maxWhole = 32 << 20

// flagsOf returns the flags that read on.
func flagsOf(next *types.ReadOn) string {
	switch {
	case next == nil: // from a service that does not say
		return "--offset"
	case next.SkipBytes > 0:
		return fmt.Sprintf("--offset %d --skip-bytes %d", next.Offset, next.SkipBytes)
	}
	return fmt.Sprintf("--offset %d", next.Offset)
}

func describeType(r types.ReadResult) string {
	switch {
	case r.Type == types.ReadImage:
		return "an image (" + r.MimeType + ")"
	case r.Encoding != "":
		return "a text in " + r.Encoding
	}
	return "a binary file"
}

func writeCommand(a *app) *cobra.Command {
	var t target
	var w types.Write
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "write --user USER [flags] PATH CONTENT|-",
		Short: "Write a file of a sandbox",
		Long: `write writes CONTENT to a file, or stdin if CONTENT is -. It replaces a file that exists, or adds to it with
--append. PATH is absolute inside, from the home as '~/…' (quoted, because the shell would put your own
home there), or relative to the working directory, which is the home with --user. If stdin is a file that grows
meanwhile, it is written as long as it was at the beginning.`,
		Example: `  sandbox write --user alice notes.txt 'buy milk'
  sandbox write --user alice --append log.txt "$(date)"
  make 2>&1 | sandbox write --user alice /tmp/build.log -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := a.client()
			defer c.Close()
			id, err := t.register(cmd.Context(), c, nil)
			if err != nil {
				return err
			}
			written, err := writeContent(cmd.Context(), c, id, args[0], w, args[1], cmd.InOrStdin())
			return show(cmd, asJSON, written, err,
				func(out io.Writer, written types.Written) error {
					_, err := fmt.Fprintf(out, "%s: %d bytes written\n",
						printable(written.SandboxPath),
						written.Bytes)
					return err
				})
		},
	}
	t.flags(a, cmd)
	cmd.Flags().BoolVarP(&w.Follow, "dereference", "L", false,
		"if PATH is a symbolic link, write to what it leads to")
	cmd.Flags().BoolVar(&w.Append, "append", false, "add to the end of the file")
	cmd.Flags().BoolVar(&w.Exclusive, "exclusive", false, "fail if the file exists")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// errTooMuch is returned because a JSON body is unsuitable for so much data.
var errTooMuch = errors.New("--append takes 8 MiB at most from stdin")

const appendLimit = 8 << 20

// writeContent writes an argument, or stdin as a stream. Appending cannot stream.
func writeContent(ctx context.Context, c *client.Client, id, path string, w types.Write,
	content string, stdin io.Reader) (types.Written, error) {
	if content == "-" && !w.Append {
		return c.UploadWith(ctx, id, path, stdin,
			client.UploadOptions{Exclusive: w.Exclusive, Follow: w.Follow})
	}
	data := []byte(content)
	if content == "-" {
		var err error
		if data, err = io.ReadAll(io.LimitReader(stdin, appendLimit+1)); err != nil {
			return types.Written{}, fmt.Errorf("cannot read stdin: %w", err)
		}
		if len(data) > appendLimit {
			return types.Written{}, errTooMuch
		}
	}
	w.Target, w.Content = client.Target(path), string(data)
	if !utf8.Valid(data) {
		w.Content, w.Encoding = base64.StdEncoding.EncodeToString(data), types.Base64
	}
	return c.Write(ctx, id, w)
}
