package plegz

import (
	"maps"
	"slices"
	"unicode/utf8"
)

// maxText is how many bytes of a text are shown. A name in Kubernetes has 253 at most.
const maxText = 1024

// clip cuts a text that is too long to be shown.
func clip(s string) string { return clipTo(s, maxText) }

// clipTo cuts a text to at most this many bytes, and says so.
func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// maxList is how many elements of a list are shown that may be long.
const maxList = 50

// clipMap cuts what is too long to be shown of labels or annotations. Those shown are the
// first by key.
func clipMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(m))
	shown := make(map[string]string, min(len(keys), maxList))
	for _, k := range keys[:min(len(keys), maxList)] {
		shown[clip(k)] = clip(m[k])
	}
	return shown
}

// clipList cuts what is too long to be shown.
func clipList(list []string) []string {
	shown := make([]string, 0, min(len(list), maxList))
	for _, s := range list[:min(len(list), maxList)] {
		shown = append(shown, clip(s))
	}
	return shown
}
