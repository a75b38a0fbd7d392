package plegz

import (
	"encoding/json"
	"time"

	"github.com/kubepleg/pleg/internal/printable"
)

// shownTime returns a time that JSON can express; zero, which is not shown, for others. It is
// in UTC, because a zone can be one that JSON has no way to write.
func shownTime(t time.Time) time.Time {
	t = t.UTC()
	if y := t.Year(); y < 1 || y > 9999 {
		return time.Time{}
	}
	return t
}

// encoded returns v as JSON, in which what a terminal could obey is escaped. The types here
// have nothing that cannot be encoded but such times, which shownTime keeps out, and a number
// that is none, which a total keeps out.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return printable.JSON(b)
}
