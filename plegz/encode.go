package plegz

import (
	"encoding/json"
	"time"

	"github.com/kubepleg/pleg/internal/printable"
)

// shownTime returns the time in UTC, because JSON cannot express every zone. It returns zero, which
// is not shown, for a year that JSON cannot express.
func shownTime(t time.Time) time.Time {
	t = t.UTC()
	if y := t.Year(); y < 1 || y > 9999 {
		return time.Time{}
	}
	return t
}

// encoded returns v as JSON, and escapes what a terminal could obey. Marshalling cannot fail:
// shownTime filters out the times that JSON cannot express, and meanSince the numbers.
func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return printable.JSON(b)
}
