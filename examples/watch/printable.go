package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// printable returns s with everything escaped that a terminal could obey: control
// characters, line breaks, marks of direction, bytes that are no UTF-8. Names, reasons
// and errors come from the runtime, and a terminal must not do what a pod is called.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, isHidden) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// printableLines is printable for a text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// printableJSON escapes what encoding/json leaves in a line as it is, such as the C1
// control characters, of which one is as good as ESC [. They can only be in strings.
func printableJSON(line []byte) []byte {
	if !bytes.ContainsFunc(line, isHidden) {
		return line
	}
	var b bytes.Buffer
	for _, r := range string(line) {
		switch {
		case !isHidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

func isHidden(r rune) bool { return !unicode.IsPrint(r) }
