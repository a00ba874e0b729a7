package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// width returns how many columns a terminal has; 0 if out is not a terminal.
func width(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(max(size.Col, 40)) // a terminal that does not know its size says 0
}

// printable returns a name that cannot control a terminal: a sandbox may give its files any names.
func printable(name string) string {
	for _, r := range name {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}

// fit cuts a text to a number of columns; 0 means no limit.
func fit(text string, columns int) string {
	runes := []rune(text)
	if columns <= 0 || len(runes) <= columns {
		return text
	}
	return strings.TrimRight(string(runes[:columns-1]), " ") + "…"
}

// fitEnd cuts a text at its beginning: the end of a host name says whose it is.
func fitEnd(text string, columns int) string {
	runes := []rune(text)
	if columns <= 0 || len(runes) <= columns {
		return text
	}
	return "…" + string(runes[len(runes)-columns+1:])
}

// table has lines whose columns widen with their contents. To fit a terminal one column is cut, and
// the last one gets the rest.
type table struct {
	columns int   // of the terminal; 0 if there is none
	widths  []int // of all columns but the last
	gives   int   // the column that is cut
	// share returns how wide that column may be, of what the others leave to it and the last one.
	share func(rest int) int
	cut   func(text string, columns int) string
}

// lines returns the text of further rows.
func (t *table) lines(rows ...[]string) string {
	for _, row := range rows {
		for i := range t.widths {
			t.widths[i] = max(t.widths[i], len([]rune(row[i])))
		}
	}
	widths, room := slices.Clone(t.widths), 0
	if t.columns > 0 {
		rest := t.columns - 2*len(widths) + widths[t.gives]
		for _, widest := range widths {
			rest -= widest
		}
		widths[t.gives] = min(widths[t.gives], t.share(rest))
		room = max(rest-widths[t.gives], 10)
	}
	var text strings.Builder
	for _, row := range rows {
		for i, widest := range widths {
			cell := row[i]
			if i == t.gives {
				cell = t.cut(cell, widest)
			}
			fmt.Fprintf(&text, "%-*s  ", widest, cell)
		}
		text.WriteString(fit(row[len(widths)], room) + "\n")
	}
	return text.String()
}
