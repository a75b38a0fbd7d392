package mixin_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// program returns the path of a program from Debian's package prometheus. If it is missing, the
// test fails, because a run that checks nothing must not pass.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing, so nothing was tested; Debian's package prometheus has it: "+
			"apt-get install --no-install-recommends prometheus", name)
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, "promtool"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, out)
	}
}

func TestPromtoolChecksRules(t *testing.T) {
	promtool(t, "check", "rules", filepath.Join(mixinDir, "rules.yaml"), filepath.Join(mixinDir, "alerts.yaml"))
}

// promtool runs the unit tests in testdata/*_test.yaml. They check the alerts over minutes and
// hours.
func TestPromtoolTestsRules(t *testing.T) {
	files, err := filepath.Glob("testdata/*_test.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of tests, %v", len(files), err)
	}
	promtool(t, append([]string{"test", "rules"}, files...)...)
}
