package printable_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/kubepleg/pleg/internal/printable"
)

func TestText(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "web-0": "web-0", "Grüße 世界": "Grüße 世界", `a"b\c`: `a"b\c`,
		"\x1b]0;title\a": `\x1b]0;title\a`, "a\r\nb": `a\r\nb`, "\xff": `\xff`, "a\u00a0b": `a\u00a0b`,
		"\x1b\\": `\x1b\\`, "\x00\"": `\x00"`, "\x00\\\"": `\x00\\"`,
	} {
		if got := printable.Text(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
	if got, want := printable.Lines("a\nb\x1b"), "a\nb\\x1b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzPrintable fails if an output contains unprintable characters, or if the escaped JSON has
// another value.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "web-0", "\x1b[2J\n\x7f\u009b31m\u202e\U000e0001é\\", "\xff\"", "\u2028<&>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hidden := func(r rune) bool { return !unicode.IsPrint(r) }
		if text := printable.Text(s); strings.ContainsFunc(text, hidden) {
			t.Errorf("%q: %q", s, text)
		}
		encoded, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		line := printable.JSON(encoded)
		var before, after string
		if json.Unmarshal(encoded, &before) != nil || json.Unmarshal(line, &after) != nil || before != after ||
			strings.ContainsFunc(string(line), hidden) {
			t.Errorf("%q: %q is read as %q, want %q", s, line, after, before)
		}
	})
}
