package plegz

import (
	"encoding/json"
	"time"

	"github.com/kubepleg/pleg/internal/printable"
)

// shownTime converts a time to UTC, because JSON cannot express every time zone. For a year that
// JSON cannot express, it returns the zero time, which answers leave out.
func shownTime(t time.Time) time.Time {
	t = t.UTC()
	if y := t.Year(); y < 1 || y > 9999 {
		return time.Time{}
	}
	return t
}

// encoded returns v as JSON, and escapes characters that control a terminal. Marshalling cannot
// fail: shownTime has removed times that JSON cannot express. meanSince has removed numbers that
// JSON cannot express.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return printable.JSON(b)
}
