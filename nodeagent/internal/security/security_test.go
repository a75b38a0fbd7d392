package security

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// maskedPaths returns alwaysMasked, and thermal_throttle of each CPU.
func TestMaskedPaths(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"cpu0/thermal_throttle", "cpu11/thermal_throttle", "cpu2/topology",
		"cpufreq/thermal_throttle"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := maskedPaths(dir)
	want := append(slices.Clone(alwaysMasked), filepath.Join(dir, "cpu0/thermal_throttle"),
		filepath.Join(dir, "cpu11/thermal_throttle"))
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := maskedPaths(t.TempDir()); !slices.Equal(got, alwaysMasked) {
		t.Errorf("%q", got)
	}
}
