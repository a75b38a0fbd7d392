package main

import (
	"io"
	"strings"
	"testing"

	"github.com/kubepleg/pleg"
)

func TestFilter(t *testing.T) {
	event := func(namespace, pod string, event pleg.PodLifeCycleEventType) *pleg.PodLifecycleEvent {
		return &pleg.PodLifecycleEvent{Type: event, Pod: &pleg.Pod{Namespace: namespace, Name: pod,
			Labels: map[string]string{"app": pod, "team": namespace}}}
	}
	all := map[string]*pleg.PodLifecycleEvent{
		"shop/web started": event("shop", "web", pleg.ContainerStarted),
		"shop/web died":    event("shop", "web", pleg.ContainerDied),
		"shop/db removed":  event("shop", "db", pleg.ContainerRemoved),
		"jobs/web sync":    event("jobs", "web", pleg.PodSync),
		"jobs/a.b died":    event("jobs", "a.b", pleg.ContainerDied),
	}
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"", []string{"shop/web started", "shop/web died", "shop/db removed", "jobs/web sync", "jobs/a.b died"}},
		{"--namespace shop", []string{"shop/web started", "shop/web died", "shop/db removed"}},
		{"--namespace shop --namespace jobs --event died", []string{"shop/web died", "jobs/a.b died"}},
		{"--namespace shop,jobs --event ContainerDied", []string{"shop/web died", "jobs/a.b died"}},
		{"--namespace none", nil},
		{"--pod web", []string{"shop/web started", "shop/web died", "jobs/web sync"}},
		{"--pod shop/web", []string{"shop/web started", "shop/web died"}},
		{"--pod shop/web,a.b", []string{"shop/web started", "shop/web died", "jobs/a.b died"}},
		{"--pod shop/web --namespace jobs", nil},
		{"--event started,REMOVED --event PodSync", []string{"shop/web started", "shop/db removed", "jobs/web sync"}},
		{"--pod web --event died,podsync --namespace=jobs", []string{"jobs/web sync"}},
		{"-n sh* -p w?b", []string{"shop/web started", "shop/web died"}},
		{"-p *s/[a-v]*", []string{"jobs/a.b died"}},
		{"-l app=web", []string{"shop/web started", "shop/web died", "jobs/web sync"}},
		{"-l app!=web,team=shop", []string{"shop/db removed"}},
		{"-l team -e Died", []string{"shop/web died", "jobs/a.b died"}},
		{"-l tier", nil},
	} {
		f, err := parseFlags(strings.Fields(tt.args), &strings.Builder{})
		if err != nil {
			t.Errorf("%s: %v", tt.args, err)
			continue
		}
		wanted := map[string]bool{}
		for _, name := range tt.want {
			wanted[name] = true
		}
		for name, e := range all {
			l := describe(e, pleg.NewCache(), someTime)
			if got := f.filter.wants(&l, e.Pod.Labels); got != wanted[name] {
				t.Errorf("%s: %s: %t, want %t", tt.args, name, got, wanted[name])
			}
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	for _, tt := range []struct{ flag, value, says string }{
		{"namespace", "", "it is empty"},
		{"namespace", "shop,", "a comma too many"},
		{"namespace", "Shop", `"Shop" is not the name of a namespace, nor a pattern`},
		{"namespace", "shop/web", `"shop/web" is not the name of a namespace`},
		{"namespace", "\x1b[2J", `"\x1b[2J" is not the name of a namespace`},
		{"namespace", "sh[op", `"sh[op" is not the name of a namespace`},
		{"pod", ",web", "a comma too many"},
		{"pod", "web_0", `"web_0" is not the name of a pod`},
		{"pod", "shop/", `"" is not the name of a pod`},
		{"pod", "/web", `"" is not the name of a namespace`},
		{"pod", "a/b/c", `"b/c" is not the name of a pod`},
		{"selector", "app=,=", "found '='"},
		{"event", "Starting", `there is no event "Starting": Started, Died, Ended, Removed or PodSync`},
		{"event", "ContainerChanged", `there is no event "ContainerChanged"`},
		{"event", " ", "it is empty"},
	} {
		_, err := parseFlags([]string{"--" + tt.flag, tt.value}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "--"+tt.flag+`" flag: `) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("--%s %q: want an error with %q, got %v", tt.flag, tt.value, tt.says, err)
		}
	}
}
