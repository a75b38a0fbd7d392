package plegz

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/healthreport"
)

// others returns a phrase for n more objects in the same state, or "" if n is zero. The argument
// one contains the words for a single object, and many the words for several.
func others(n int, one, many string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", and one more " + one
	default:
		return fmt.Sprintf(", and %d more %s", n, many)
	}
}

// have returns a number and a noun, followed by "has" or "have".
func have(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " has"
	}
	return healthreport.Plural(n, noun) + " have"
}

func nameOf(namespace, name, uid string) string {
	if name == "" {
		return uid
	}
	return namespace + "/" + name
}

// clockTime formats a recent time, without the year. It uses UTC, because the reader may be in
// another time zone.
func clockTime(t time.Time) string { return t.UTC().Format("15:04:05 UTC on 2 Jan") }

// roughly formats a duration in one unit with few digits.
func roughly(d time.Duration) string {
	switch d = max(0, d); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

// sentenceCase capitalizes the first letter of a note. A note begins with an ASCII letter.
func sentenceCase(note string) string { return strings.ToUpper(note[:1]) + note[1:] }

// ownDuration matches a duration in one of the generator's texts, together with the word before it. It
// does not match names, or texts from the runtime, that only look like durations.
var ownDuration = regexp.MustCompile(
	`\b(?:active|threshold is|longer than|failed|running for|unanswered for|within) (?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?s\b`)

// rounded finds the generator's durations in a text. It formats durations of a second or more with the
// function roughly.
func rounded(text string) string {
	return ownDuration.ReplaceAllStringFunc(text, func(match string) string {
		i := strings.LastIndexByte(match, ' ') + 1
		if parsed, err := time.ParseDuration(match[i:]); err == nil && parsed >= time.Second {
			return match[:i] + roughly(parsed)
		}
		return match
	})
}
