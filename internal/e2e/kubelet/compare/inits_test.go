package main

import (
	"encoding/json"
	"maps"
	"testing"
)

// TestShownInits shows what a kubelet must not show of a pod whose init container fails.
func TestShownInits(t *testing.T) {
	const (
		waiting = `{"waiting": {}}`
		running = `{"running": {}}`
		failed  = `{"terminated": {"exitCode": 1}}`
		killed  = `{"terminated": {"exitCode": 137}}`
	)
	for _, c := range []struct {
		name  string
		shown [][2]string // states of the init container and of the other
		want  string
	}{
		{"it fails", [][2]string{{waiting, waiting}, {running, waiting}, {failed, waiting}, {failed, waiting}}, ""},
		{"the other begins", [][2]string{{failed, running}}, "its container is shown to have begun"},
		{"the other has ended", [][2]string{{failed, failed}}, "its container is shown to have begun"},
		{"it lives again", [][2]string{{failed, waiting}, {running, waiting}},
			"its init container was dead, and is not any more"},
		{"it ends in two ways", [][2]string{{failed, waiting}, {killed, waiting}},
			"its init container ended with 1, and then with 137"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := shownInits{codes: make(map[string]int), faults: make(map[string]string)}
			for _, states := range c.shown {
				var pods podList
				answer := `{"items": [{"metadata": {"name": "init1-node"}, "status": {"initContainerStatuses": [{"state": ` +
					states[0] + `}], "containerStatuses": [{"state": ` + states[1] + `}]}}, {"metadata": {"name": "pod001-node"}, ` +
					`"status": {"containerStatuses": [{"state": ` + running + `}]}}]}`
				if err := json.Unmarshal([]byte(answer), &pods); err != nil {
					t.Fatal(err)
				}
				s.see(pods)
			}
			want := map[string]string{}
			if c.want != "" {
				want["init1"] = c.want
			}
			if !maps.Equal(s.faults, want) {
				t.Errorf("faults are %q, want %q", s.faults, want)
			}
		})
	}
}
