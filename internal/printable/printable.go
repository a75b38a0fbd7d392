// Package printable escapes what a terminal or a reader could obey: names, reasons and
// errors come from the runtime, and a terminal must not do what a pod is called.
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

// Text returns s with everything escaped that does not print: control characters, line
// breaks, marks of direction, bytes that are no UTF-8. A backslash is escaped only beside
// those.
func Text(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, isHidden) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Lines is Text for a text of several lines.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// JSON escapes what encoding/json leaves in a line as it is, such as the C1 control
// characters, of which one is as good as ESC [. They can only be in strings.
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
