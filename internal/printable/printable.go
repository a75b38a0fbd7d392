// Package printable escapes characters that could control a terminal. Names, reasons and errors
// come from the runtime, so they may contain such characters.
package printable

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns s with all unprintable characters escaped: control characters, line breaks,
// direction marks and invalid UTF-8. A backslash is escaped only if the text contains an
// unprintable character.
func Text(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, isHidden) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Lines escapes each line like Text, and keeps the line breaks.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// JSON escapes the characters in a line that encoding/json leaves unescaped, such as the C1 control
// characters. One of the C1 characters works like ESC [. In JSON, such characters occur only in
// strings.
func JSON(line []byte) []byte {
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
