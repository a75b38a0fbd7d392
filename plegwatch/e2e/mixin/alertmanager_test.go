package mixin_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// alertmanager contains the parts of the Alertmanager example that the tests read.
type alertmanager struct {
	InhibitRules []struct {
		Source []string `json:"source_matchers"`
		Target []string `json:"target_matchers"`
		Equal  []string `json:"equal"`
	} `json:"inhibit_rules"`
}

func readAlertmanager(t *testing.T) (a alertmanager) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(mixinDir, "alertmanager.yaml"))), &a); err != nil {
		t.Fatal(err)
	}
	if len(a.InhibitRules) < 5 {
		t.Fatalf("%d rules", len(a.InhibitRules))
	}
	return a
}

var matcher = regexp.MustCompile(`^alertname (=|=~|!~) "(.*)"$`)

// matches reports whether an alert's name satisfies all matchers. It fails the test if a matcher is
// not about the name.
func matches(t *testing.T, matchers []string, alert string) bool {
	t.Helper()
	for _, m := range matchers {
		parts := matcher.FindStringSubmatch(m)
		if parts == nil {
			t.Fatalf("%q is no matcher of a name", m)
		}
		is := regexp.MustCompile("^(?:" + parts[2] + ")$").MatchString(alert)
		if is == (parts[1] == "!~") {
			return false
		}
	}
	return true
}

// pages returns the firing alerts of one agent that no other firing alert inhibits.
func (a alertmanager) pages(t *testing.T, firing ...string) []string {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(firing), func(alert string) bool {
		for _, r := range a.InhibitRules {
			if matches(t, r.Target, alert) && slices.ContainsFunc(firing, func(other string) bool {
				return other != alert && matches(t, r.Source, other)
			}) {
				return true
			}
		}
		return false
	})
}

// If one cause fires several alerts, only one of them pages: the alert that describes the cause
// best.
func TestOneCauseOnePage(t *testing.T) {
	a := readAlertmanager(t)
	for want, firing := range map[string]string{
		"PlegNotSeen": "PlegNotSeen PlegUnhealthy PlegRelistSlow PlegInspectionsStuck PlegInspectionsFailing " +
			"PlegEventStreamDown PlegExitStreamDown",
		"PlegNeverListed":          "PlegNeverListed PlegUnhealthy PlegEventStreamDown",
		"PlegUnhealthy":            "PlegUnhealthy PlegInspectionsStuck PlegInspectionsFailing PlegExitStreamDown",
		"PlegInspectionsStuck":     "PlegInspectionsStuck PlegInspectionsFailing",
		"PlegAgentGone":            "PlegAgentGone PlegContainersCrashing PlegOOMKills",
		"PlegFleetUnhealthy":       "PlegFleetUnhealthy PlegUnhealthy PlegNotSeen PlegAgentGone",
		"PlegBadData":              "PlegBadData",
		"PlegNotSeen PlegOOMKills": "PlegNotSeen PlegOOMKills", // two causes, so two pages
	} {
		if got := strings.Join(a.pages(t, strings.Fields(firing)...), " "); got != want {
			t.Errorf("of %s there remain: %s", firing, got)
		}
	}
}

// If Debian's package prometheus-alertmanager is installed, its amtool must accept the example. The
// example names only existing alerts. An alert inhibits only alerts of its own agent.
// PlegFleetUnhealthy inhibits only alerts of its own job.
func TestAlertmanagerNamesAlerts(t *testing.T) {
	example := filepath.Join(mixinDir, "alertmanager.yaml")
	if amtool, err := exec.LookPath("amtool"); err != nil {
		t.Log("there is no amtool to check the example as a whole")
	} else if out, err := exec.CommandContext(t.Context(), amtool, "check-config", example).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	names := map[string]bool{"Pleg": true} // the example also contains the pattern Pleg.*
	for _, rule := range alerts(t) {
		names[rule.Alert] = true
	}
	for _, name := range regexp.MustCompile(`Pleg\w*`).FindAllString(
		readFile(t, example), -1) {
		if !names[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
	for _, r := range readAlertmanager(t).InhibitRules {
		want := []string{"cluster", "job", "instance"}
		if matches(t, r.Source, "PlegFleetUnhealthy") {
			want = want[:2]
		}
		if !slices.Equal(r.Equal, want) {
			t.Errorf("%q inhibits where %q are equal", r.Source, r.Equal)
		}
	}
}
