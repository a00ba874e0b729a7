package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// width is how many columns a terminal has, and 0 for what is none.
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

// printable is a name that does nothing to a terminal: what a sandbox calls its files is its own affair.
func printable(name string) string {
	for _, r := range name {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}

// fit cuts a text to a number of columns; 0 is for no limit.
func fit(text string, columns int) string {
	runes := []rune(text)
	if columns <= 0 || len(runes) <= columns {
		return text
	}
	return strings.TrimRight(string(runes[:columns-1]), " ") + "…"
}

// fitEnd cuts a text at its begin. Of a host's name the end is what says whose it is.
func fitEnd(text string, columns int) string {
	runes := []rune(text)
	if columns <= 0 || len(runes) <= columns {
		return text
	}
	return "…" + string(runes[len(runes)-columns+1:])
}
