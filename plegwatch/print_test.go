package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
)

var someTime = time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)

func TestTextPrinter(t *testing.T) {
	one, lag := 1, 0.0012
	base := line{Time: someTime, Namespace: "shop", Pod: "web-0", Container: "nginx", Event: pleg.ContainerStarted,
		State: "running", Cause: pleg.CausePeriod}
	with := func(edit func(l *line)) line {
		l := base
		edit(&l)
		return l
	}
	for _, tt := range []struct {
		name string
		line line
		want string
	}{
		{"started", base,
			"shop/web-0                 nginx        Started  running                    -  period"},
		{"restarted", with(func(l *line) { l.RestartCount, l.LagSeconds = 3, &lag }),
			"shop/web-0                 nginx        Started  running, restart 3     1.2ms  period"},
		{"sandbox", with(func(l *line) { l.Container, l.Sandbox, l.State, l.IP = "", true, "ready", "10.0.0.1" }),
			"shop/web-0                 sandbox      Started  ready 10.0.0.1             -  period"},
		{"died", with(func(l *line) {
			l.Event, l.State, l.ExitCode, l.Reason, l.Cause = pleg.ContainerDied, "exited", &one, "Error", pleg.CauseHint
		}),
			"shop/web-0                 nginx        Died     exited 1 Error             -  hint"},
		{"died, and a later inspection failed", with(func(l *line) {
			l.Event, l.State, l.ExitCode, l.Reason, l.Error = pleg.ContainerDied, "exited", &one, "Error", "no"
		}),
			"shop/web-0                 nginx        Died     exited 1 Error             -  period"},
		{"removed", with(func(l *line) { l.Event, l.State = pleg.ContainerRemoved, "" }),
			"shop/web-0                 nginx        Removed  -                          -  period"},
		{"sync", with(func(l *line) { l.Event, l.State, l.Container, l.Cause = pleg.PodSync, "", "", pleg.CauseDemand }),
			"shop/web-0                 -            PodSync  -                          -  demand"},
		{"inspection failed", with(func(l *line) { l.Error = "no" }),
			"shop/web-0                 nginx        Started  inspection failed          -  period"},
		{"long names", with(func(l *line) {
			l.Namespace, l.Pod, l.Container = "kube-system", "coredns-5d78c9869d-x7k2p", "a-very-long-container-name"
		}),
			"kube-system/coredns-5d78c9869d-x7k2p  a-very-long-container-name  Started  " +
				"running                    -  period"},
		{"hostile names", with(func(l *line) {
			l.Namespace, l.Pod, l.Container, l.State = "a\x1b[2J", "b\nc", "d\u009b31m", "\u202erunning"
		}),
			`a\x1b[2J/b\nc              d\u009b31m   Started  \u202erunning              -  period`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			p := &textPrinter{w: &b, headed: true}
			if err := p.print(tt.line); err != nil {
				t.Fatal(err)
			}
			if got, want := b.String(), "2026-01-02T03:04:05.006Z       "+tt.want+"\n"; got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// On a terminal, each line fits the current width. If there is not enough room, the cause column is
// left out first, then the lag column. The state is never cut.
func TestTextPrinterOnTerminal(t *testing.T) {
	code, lag := 137, 0.0012
	long := line{Time: someTime, Namespace: strings.Repeat("n", 40), Pod: strings.Repeat("\x1b", 40),
		Container: strings.Repeat("c", 60), Event: pleg.ContainerDied, State: "exited", ExitCode: &code, LagSeconds: &lag,
		Cause: pleg.CausePeriod}
	for _, tt := range []struct {
		columns    int
		reason     string
		want       int
		lag, cause bool
	}{
		{100, "OOMKilled", 99, true, true}, // 99 columns are enough here; the cause "initial" needs 100
		{99, "OOMKilled", 99, true, false},
		{91, "OOMKilled", 91, true, false},
		{80, "OOMKilled", 80, false, false},
		{80, "ContainerCannotRunAtAll", 80, false, false},
		{100, "ContainerCannotRunAtAll", 99, true, true},
		{60, "OOMKilled", 60, false, false},
		{211, "OOMKilled", 210, true, true},
		{30, "OOMKilled", 59, false, false}, // the terminal is too narrow, so the line wraps
		{0, "OOMKilled", 99, true, true},    // the terminal does not report its width
	} {
		var b strings.Builder
		p := &textPrinter{w: &b, columns: func() int { return tt.columns }}
		long.Reason = tt.reason
		if err := p.print(long); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != 2 || utf8.RuneCountInString(lines[1]) != tt.want ||
			!strings.Contains(lines[1], "exited 137 "+tt.reason) || strings.Contains(lines[1], "1.2ms") != tt.lag ||
			strings.HasSuffix(lines[1], "period") != tt.cause {
			t.Errorf("%d columns: want a heading and a line of %d, got\n%s", tt.columns, tt.want, &b)
		}
		if strings.ContainsRune(b.String(), '\x1b') {
			t.Errorf("%d columns: the terminal would obey %q", tt.columns, &b)
		}
	}
	var b strings.Builder
	p := &textPrinter{w: &b, headed: true, columns: func() int { return 100 }}
	if err := p.print(line{Time: someTime, Namespace: "kube-system", Pod: "coredns-5d78c9869d-x7k2p",
		Container: "a-very-long-container-name", Event: pleg.ContainerStarted, State: "running", Initial: true,
	}); err != nil {
		t.Fatal(err)
	}
	want := "03:04:05.006  kube-system/…c9869d-x7k2p  a-ver…-name  Started  running                    -  initial\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The JSON printer also escapes characters that encoding/json leaves alone but that control a
// terminal.
func TestJSONPrinterEscapes(t *testing.T) {
	var b strings.Builder
	hostile := "\x1b[2J\n\x7f\u009b31m\u202e\U000e0001é\\"
	if err := (jsonPrinter{&b}).print(line{Pod: hostile}); err != nil {
		t.Fatal(err)
	}
	text, ended := strings.CutSuffix(b.String(), "\n")
	if !ended || strings.ContainsFunc(text, isHidden) {
		t.Errorf("the terminal would obey %q", b.String())
	}
	var got line
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.Pod != hostile {
		t.Errorf("read back as %q, %v; want %q", got.Pod, err, hostile)
	}
}

func TestTextPrinterColours(t *testing.T) {
	one := 1
	var b strings.Builder
	p := &textPrinter{w: &b, headed: true, colour: true}
	if err := p.print(line{Event: pleg.ContainerDied, ExitCode: &one}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.HasPrefix(got, "\x1b[31m") || !strings.HasSuffix(got, "\x1b[0m\n") {
		t.Errorf("a crash is not red: %q", got)
	}
	b.Reset()
	if err := p.print(line{Event: pleg.ContainerDied, ExitCode: &one, Initial: true}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); !strings.HasPrefix(got, "\x1b[2m") {
		t.Errorf("what had happened before is not dim: %q", got)
	}
}

func TestLagText(t *testing.T) {
	for seconds, want := range map[float64]string{
		0.00004: "0.0ms", 0.0994: "99.4ms", 0.09996: "100ms", 0.5: "500ms", 0.9996: "1.0s", 61: "61.0s",
	} {
		if got := (line{LagSeconds: &seconds}).lagText(); got != want {
			t.Errorf("%v s: %s, want %s", seconds, got, want)
		}
	}
}

// TestDescribe runs a pod on the fake runtime and checks the output lines of its events.
func TestDescribe(t *testing.T) {
	rt := plegtest.NewRuntime()
	cache := pleg.NewCache()
	g := pleg.New(rt, pleg.WithCache(cache), pleg.WithLogger(klog.Logger{}))
	events := g.Watch()
	// look calls Relist, and returns the descriptions of the container's events.
	look := func() (lines []line) {
		_ = g.Relist(t.Context())
		for len(events) > 0 {
			if l := describe(<-events, cache, time.Now()); l.Container == "nginx" {
				lines = append(lines, l)
			}
		}
		return lines
	}
	const uid types.UID = "web"

	rt.SetPod(plegtest.NewPod(uid, plegtest.Running("nginx")))
	if got := look(); len(got) != 1 || got[0].Event != pleg.ContainerStarted ||
		got[0].State != "running" || got[0].LagSeconds != nil {
		t.Errorf("a container that ran before the watch: %+v", got)
	}
	rt.ExitContainer(uid, "nginx", 137, "OOMKilled")
	got := look()
	if len(got) != 1 || got[0].Event != pleg.ContainerDied || *got[0].ExitCode != 137 || got[0].Reason != "OOMKilled" ||
		got[0].LagSeconds == nil {
		t.Errorf("a container out of memory: %+v", got)
	}
	rt.Fail(plegtest.GetPodStatus, uid, errors.New("no answer"))
	rt.RestartContainer(uid, "nginx", "nginx-2")
	if got := look(); len(got) != 1 || !strings.Contains(got[0].Error, "no answer") {
		t.Errorf("a restart that cannot be inspected: %+v", got)
	}
	rt.Heal()
	rt.RemovePod(uid)
	if got := look(); len(got) != 3 || got[2].Event != pleg.ContainerRemoved || got[2].State != "" {
		t.Errorf("a pod that is gone: %+v", got)
	}

	// Here the event of the death is read after the pod was removed. The cache has dropped the
	// container, so the line takes its status from the event.
	rt.SetPod(plegtest.NewPod(uid, plegtest.Running("nginx")))
	_ = g.Relist(t.Context())
	rt.ExitContainer(uid, "nginx", 1, "Error")
	_ = g.Relist(t.Context())
	rt.RemovePod(uid)
	if got := look(); len(got) != 3 || got[1].Event != pleg.ContainerDied || got[1].State != "exited" ||
		got[1].ExitCode == nil || *got[1].ExitCode != 1 || got[2].State != "" {
		t.Errorf("a death that is read late: %+v", got)
	}
}

// printed is a printer that stores the lines.
type printed struct{ lines []line }

func (p *printed) print(l line) error {
	p.lines = append(p.lines, l)
	return nil
}

func (p *printed) printHealth(healthLine) error { return nil }

// If the runtime learns a reason late, the lines of the PodSync and of the end show it. Each end
// has one line.
func TestLateReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := plegtest.NewRuntime()
		cache := pleg.NewCache()
		g := pleg.NewGenericPLEG(rt, 100, time.Second, cache, clock.RealClock{}, pleg.WithLogger(klog.Logger{}))
		g.Start(t.Context())
		defer g.Stop()
		var got printed
		wanted := flags{filter: filter{events: []pleg.PodLifeCycleEventType{
			pleg.ContainerDied, pleg.ContainerEnded, pleg.PodSync,
		}}}
		f := newFollower(g, cache, wanted, &got, nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = f.follow(ctx) }()
		rt.SetPod(plegtest.NewPod("web", plegtest.Running("nginx"), plegtest.Running("proxy")))
		time.Sleep(1500 * time.Millisecond)
		rt.ExitContainer("web", "nginx", 137, "Error")
		rt.ExitContainer("web", "proxy", 1, "Error")
		time.Sleep(1500 * time.Millisecond)
		rt.ExitContainer("web", "nginx", 137, "OOMKilled")
		time.Sleep(5 * time.Second)
		g.RequestReinspect("web")
		time.Sleep(time.Second)
		rt.RemovePod("web")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		var lines, ends []string
		for _, l := range got.lines {
			text := fmt.Sprint(l.containerText(), " ", eventText(l.Event), " ", l.stateText())
			if l.Event == pleg.ContainerEnded { // ends come from another subscription, in any order
				ends = append(ends, text)
			} else {
				lines = append(lines, text)
			}
		}
		if want := []string{"nginx Ended exited 137 OOMKilled", "proxy Ended exited 1 Error"}; !slices.Equal(ends, want) {
			t.Errorf("ends %q", ends)
		}
		want := []string{
			"nginx Died exited 137 Error", "proxy Died exited 1 Error", "nginx PodSync exited 137 OOMKilled",
			"- PodSync -", "sandbox Died -",
		}
		if !slices.Equal(lines, want) {
			t.Errorf("printed %q", lines)
		}
	})
}
