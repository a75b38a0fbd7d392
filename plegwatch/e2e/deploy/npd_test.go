package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// npdConfig contains the fields that node-problem-detector reads from a custom plugin's
// configuration. node-problem-detector ignores unknown fields. The test rejects unknown fields, to
// find misspelt ones.
type npdConfig struct {
	Plugin       string `json:"plugin"`
	PluginConfig struct {
		InvokeInterval                          string `json:"invoke_interval"`
		Timeout                                 string `json:"timeout"`
		MaxOutputLength                         int    `json:"max_output_length"`
		Concurrency                             int    `json:"concurrency"`
		EnableMessageChangeBasedConditionUpdate bool   `json:"enable_message_change_based_condition_update"`
		SkipInitialStatus                       bool   `json:"skip_initial_status"`
	} `json:"pluginConfig"`
	Source           string `json:"source"`
	MetricsReporting bool   `json:"metricsReporting"`
	Conditions       []struct {
		Type    string `json:"type"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"conditions"`
	Rules []npdRule `json:"rules"`
}

type npdRule struct {
	Type      string   `json:"type"`
	Condition string   `json:"condition"`
	Reason    string   `json:"reason"`
	Path      string   `json:"path"`
	Args      []string `json:"args"`
	Timeout   string   `json:"timeout"`
}

func readNPDConfig(t *testing.T, name string) (c npdConfig) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(Root(), "plegwatch", "deploy", "node-problem-detector", name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// runRule runs a rule as node-problem-detector does, with the rule's timeout and the output
// trimmed. It fails the test if node-problem-detector would cut the output.
func runRule(t *testing.T, c *npdConfig, r *npdRule) (code int, says string) {
	t.Helper()
	timeout, err := time.ParseDuration(r.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, r.Args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Errorf("%v was killed after %v", r.Args, timeout)
	}
	says = strings.TrimSpace(string(out))
	if len(says) > c.PluginConfig.MaxOutputLength || stderr.Len() > 0 {
		t.Errorf("%d bytes, and stderr %q: %s", len(says), &stderr, says)
	}
	return cmd.ProcessState.ExitCode(), says
}

// The rules for an agent and for a runtime both give results that node-problem-detector
// understands. Both rules end before the timeout, and node-problem-detector does not cut their
// output.
func TestNodeProblemDetector(t *testing.T) {
	for name, asksAgent := range map[string]bool{"pleg.json": true, "runtime.json": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := readNPDConfig(t, name)
			claim(t, c.Plugin == "custom" && len(c.Conditions) == 1 && len(c.Rules) == 1, "one condition, one rule")
			rule, condition := c.Rules[0], c.Conditions[0]
			claim(t, rule.Type == "permanent" && rule.Condition == condition.Type, "the rule sets the condition")
			claim(t, rule.Path == "/usr/local/bin/plegwatch" && rule.Timeout <= c.PluginConfig.Timeout,
				"the rule runs the program, no longer than any plugin may run")
			claim(t, c.PluginConfig.MaxOutputLength == 80, "80 bytes are kept")
			claim(t, c.PluginConfig.EnableMessageChangeBasedConditionUpdate, "the message changes with the cause")

			s := proctest.CRIServer(t)
			s.RunPod(criserver.PodConfig{Name: "web"})
			last := len(rule.Args) - 1
			expect := func(code int, says string) {
				t.Helper()
				eventually(t, func() string {
					if got, said := runRule(t, &c, &rule); got != code || !strings.Contains(said, says) {
						return fmt.Sprintf("exit code %d, want %d, %q: %s", got, code, says, said)
					}
					return ""
				})
			}
			if asksAgent {
				claim(t, rule.Args[last] == unitAddress(t), "the rule asks the agent that systemd runs")
				rule.Args[last] = "unix://" + filepath.Join(t.TempDir(), "plegwatch.sock")
				expect(2, "the agent does not answer")
				startAgent(t, program, "--runtime-endpoint", s.Endpoint(), "--wait", "--listen", rule.Args[last])
			} else {
				claim(t, rule.Args[last] == "unix://"+sockets[""], "the rule asks containerd")
				rule.Args[last] = s.Endpoint()
			}
			expect(0, "healthy: 1 pod")
			// An agent stays healthy for 3 minutes without a list, so this applies to the runtime
			// only.
			if !asksAgent {
				s.Freeze()
				expect(1, "the runtime does not answer within 4s")
				s.Thaw()
				expect(0, "healthy: 1 pod")
				s.Down()
				expect(1, "not healthy")
			}
		})
	}
}
