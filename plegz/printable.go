package plegz

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable returns s with everything escaped that a terminal could obey or that changes
// the direction of writing. Names, reasons and errors come from the runtime.
func printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
