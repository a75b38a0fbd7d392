package mixin_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// faster is the factor by which a test on a real Prometheus shortens windows and waiting times.
const faster = 30

var minutes = regexp.MustCompile(`(for: |offset |\[)(\d+)m\b`)

// shorten speeds up the rules: it divides their minutes by a constant. It also replaces thresholds;
// each threshold must occur exactly once in the rules.
func shorten(t *testing.T, rules string, thresholds map[string]string) string {
	t.Helper()
	for from, to := range thresholds {
		if strings.Count(rules, from) != 1 {
			t.Fatalf("%q is %d times in the rules", from, strings.Count(rules, from))
		}
		rules = strings.Replace(rules, from, to, 1)
	}
	return minutes.ReplaceAllStringFunc(rules, func(text string) string {
		parts := minutes.FindStringSubmatch(text)
		n, err := strconv.Atoi(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		return parts[1] + strconv.Itoa(n*60/faster) + "s"
	})
}
