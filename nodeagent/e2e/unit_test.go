package nodeagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// systemd accepts every setting in the agent's unit file, and the agent accepts every flag in that
// file.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("../nodeagent.service")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "nodeagent")
	path := filepath.Join(t.TempDir(), "nodeagent.service")
	unit := strings.ReplaceAll(string(text), "/usr/local/bin/nodeagent", program)
	if err := os.WriteFile(path, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
		path).CombinedOutput()
	if err != nil || len(out) > 0 { // systemd-analyze only warns of unknown settings
		t.Errorf("systemd-analyze verify (of Debian's package systemd): %v\n%s", err, out)
	}
	_, command, _ := strings.Cut(unit, "ExecStart=")
	flags := regexp.MustCompile(`--[a-z-]+`).FindAllString(command, -1)
	if len(flags) < 4 {
		t.Fatalf("the unit has the flags %q", flags)
	}
	// If the command fails, the loop finds no flag.
	help, _ := exec.CommandContext(t.Context(), program, "--help").CombinedOutput()
	for _, f := range flags {
		if !strings.Contains(string(help), f[1:]+" ") {
			t.Errorf("the agent has no flag %s:\n%s", f, help)
		}
	}
}
