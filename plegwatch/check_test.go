package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/internal/test/proctest"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegz"
)

// checked runs a check. The check must print exactly one line of at most 80 bytes.
func checked(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	var stdout, stderr console
	got := run(t.Context(), append([]string{"--check"}, args...), &stdout, &stderr)
	line, isLine := strings.CutSuffix(stdout.String(), "\n")
	if got != code || !isLine || len(line) > 80 || strings.Contains(line, "\n") || !strings.Contains(line, says) ||
		stderr.String() != "" {
		t.Errorf("%v: exit code %d, want %d; %d bytes, want %q in one line:\n%s\nstderr:\n%s",
			args, got, code, len(line), says, &stdout, &stderr)
	}
}

func TestCheckRuntime(t *testing.T) {
	t.Parallel()
	s := proctest.CRIServer(t)
	s.RunPod(criserver.PodConfig{Name: "web"})
	s.RunPod(criserver.PodConfig{Name: "db"})
	checked(t, 0, "the runtime is healthy: 2 pods", "--runtime-endpoint", s.Endpoint(), "--for", patience.String())
	if v := s.Violations(); len(v) > 0 {
		t.Errorf("a check has made calls that change something: %v", v)
	}

	heal := s.Block("StreamPodSandboxes", "")
	heal2 := s.Block("ListPodSandbox", "")
	began := time.Now()
	checked(t, 1, "the runtime does not list its pods within 300ms", "--runtime-endpoint", s.Endpoint(), "--for", "300ms")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("a check of 300ms has taken %v", took)
	}
	heal()
	heal2()
	s.Freeze()
	checked(t, 1, "the runtime does not answer within 300ms", "--runtime-endpoint", s.Endpoint(), "--for", "300ms")
	s.Thaw()
	checked(t, 0, "2 pods", "--runtime-endpoint", s.Endpoint(), "--for", patience.String())
	s.Down()
	checked(t, 1, "not healthy: ", "--runtime-endpoint", s.Endpoint())

	checked(t, 1, "no such file", "--runtime-endpoint", filepath.Join(t.TempDir(), "no.sock"))
	checked(t, 2, "only unix sockets", "--runtime-endpoint", "tcp://127.0.0.1:1")
}

// With --listen, --check asks the agent, not the runtime. Only the agent knows which container is
// stuck.
// The default sockets are only missing if none of them exists.
func TestOnlyMissing(t *testing.T) {
	missing := fmt.Errorf("endpoint /a: %w", fs.ErrNotExist)
	for _, tt := range []struct {
		errs []error
		want bool
	}{{[]error{missing, missing}, true}, {[]error{missing, context.DeadlineExceeded, missing}, false}} {
		if got := onlyMissing(fmt.Errorf("cri: connect: %w", errors.Join(tt.errs...))); got != tt.want {
			t.Errorf("%v: %v", tt.errs, got)
		}
	}
}

func TestCheckAgent(t *testing.T) {
	t.Parallel()
	var answer http.HandlerFunc
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer agent.Close()
	address := agent.Listener.Addr().String()
	healthz := func(r agentReport) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { // answers as plegz.Healthz does
			if !r.Healthy {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_ = json.NewEncoder(w).Encode(r)
		}
	}
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	since := func(d time.Duration) string { return ago(d).UTC().Format("since 15:04") }
	long := strings.Repeat("länger ", 100)
	fine := pleg.HealthReport{Healthy: true, Pods: 104}
	failing := pleg.HealthReport{Reason: long, LastRelist: ago(190 * time.Second), RelistError: long + ": no connection"}
	blocked := pleg.HealthReport{Reason: long, LastRelist: ago(190 * time.Second),
		CallsInFlight: []pleg.RuntimeCall{{Method: "ListContainers", Since: ago(189 * time.Second)}},
		StuckRelist:   &pleg.StuckRelist{Since: ago(189 * time.Second)}}
	unlisted, frozen, exits := blocked, blocked, fine
	unlisted.CallsInFlight = append(unlisted.CallsInFlight, pleg.RuntimeCall{Method: "ContainerStatus",
		Object: "container shop/db-0/db (3f2a61d0c9b84…)", ObjectID: "3f2a61d0c9b84e5f", Since: ago(time.Minute)})
	frozen.StuckRelist = &pleg.StuckRelist{Since: ago(189 * time.Second), Frozen: true}
	frozen.LastAnswer = ago(2 * time.Hour)
	late, two, lateFrozen, freezing := blocked, unlisted, frozen, fine // late agents have no list
	late.LastRelist, two.LastRelist, lateFrozen.LastRelist = time.Time{}, time.Time{}, time.Time{}
	lateFrozen.LastAnswer, freezing.LastAnswer = time.Time{}, ago(2*time.Hour)
	lateFrozen.RelistFailingSince = ago(time.Hour)
	two.CallsInFlight = append(slices.Clone(two.CallsInFlight), two.CallsInFlight[1])
	young := late
	young.CallsInFlight = append(slices.Clone(young.CallsInFlight), pleg.RuntimeCall{Method: "ContainerStatus",
		Object: "container shop/innocent/db (9c84…)", ObjectID: "9c84", Since: ago(-time.Hour)}) // has just begun
	refused := failing
	refused.LastAnswer = ago(2 * time.Hour)
	const dialing = `connection error: desc = "transport: Error while dialing: dial unix /run/c.sock: connect: `
	refused.RelistError = dialing + `connection refused"`
	lateRefused := pleg.HealthReport{Reason: long, RelistError: refused.RelistError, RelistFailingSince: ago(time.Hour)}
	missing := lateRefused
	missing.RelistError = dialing + `no such file or directory"`
	torn := failing // the runtime answers, with an error of its own
	torn.RelistError = "rpc error: code = Unknown desc = stat merged: no such file or directory"
	withPods := func(h pleg.HealthReport, pods ...pleg.FailingPod) agentReport {
		r := agentReport{Condition: plegz.Condition{Level: plegz.LevelWarning}, HealthReport: h}
		r.FailingPods = slices.Grow(r.FailingPods, len(pods))[:len(pods)]
		for i, p := range pods {
			r.FailingPods[i].FailingPod, r.FailingPods[i].Container = p, "db"
		}
		return r
	}
	is := pleg.FailingPod{Namespace: "shop", Name: "db-0", StuckSince: ago(time.Hour)}
	later := pleg.FailingPod{Namespace: "shop", Name: "db-1", StuckSince: ago(time.Minute)}
	fails := pleg.FailingPod{Namespace: "shop", Name: "is-not-stuck", Failures: 1}
	for _, tt := range []struct {
		answer http.HandlerFunc
		code   int
		says   string
	}{
		{healthz(agentReport{HealthReport: fine}), 0, "PLEG is healthy: 104 pods"},
		{healthz(agentReport{HealthReport: pleg.HealthReport{Healthy: true, Pods: 1}}), 0, "PLEG is healthy: 1 pod"},
		{healthz(withPods(fine, is)), 0, "PLEG is healthy, but shop/db-0 db is stuck " + since(time.Hour)},
		{healthz(withPods(fine, fails)), 0, "PLEG is healthy, but shop/is-not-stuck db cannot be inspected"},
		{healthz(agentReport{HealthReport: exits, Condition: plegz.Condition{
			Level: plegz.LevelWarning, Sentence: "Degraded: the event stream is broken: no."}}), 0,
			"PLEG is healthy, but the event stream is broken: no."},
		{healthz(withPods(blocked, fails, later, is)), 1, // a list was answered while db-0 was stuck
			"PLEG is not healthy: shop/db-1 db is stuck " + since(time.Minute)},
		{healthz(withPods(pleg.HealthReport{Reason: "pleg cannot inspect any pod: " + long}, is, later)), 1,
			"PLEG is not healthy: no pod can be inspected: restart the runtime"},
		{healthz(withPods(blocked)), 1, "PLEG is not healthy: a container blocks the lists " + since(189*time.Second)},
		{healthz(withPods(unlisted)), 1, "PLEG is not healthy: shop/db-0 db is stuck " + since(189*time.Second)},
		{healthz(withPods(two)), 1, " UTC, and 1"},
		{healthz(withPods(late)), 1, "PLEG is not healthy: a container blocks the lists since at least "},
		{healthz(withPods(young)), 1, "PLEG is not healthy: a container blocks the lists since at least "},
		{healthz(withPods(frozen)), 1, "PLEG is not healthy: no answer from the runtime " + since(2*time.Hour)},
		{healthz(withPods(lateFrozen)), 1, "PLEG is not healthy: no answer from the runtime since at least " +
			ago(time.Hour).UTC().Format("15:04")},
		{healthz(withPods(freezing, is)), 0, "PLEG is healthy, but no answer from the runtime " + since(2*time.Hour)},
		{healthz(withPods(failing)), 1, "PLEG is not healthy: no list " +
			ago(190*time.Second).UTC().Format("since 15:04:05 UTC; ... ") + "no connection"},
		{healthz(withPods(pleg.HealthReport{Reason: long, RelistError: long, RelistFailingSince: ago(time.Hour)})), 1,
			"PLEG is not healthy: no answer from the runtime since at least "},
		{healthz(withPods(pleg.HealthReport{Reason: long, RelistError: "bad data", LastAnswer: time.Now()})), 1,
			"PLEG is not healthy: no list yet; bad data"},
		{healthz(withPods(refused)), 1, "PLEG is not healthy: no answer (connection refused) " + since(2*time.Hour)},
		{healthz(withPods(lateRefused)), 1, "PLEG is not healthy: no answer (connection refused) since at least " +
			ago(time.Hour).UTC().Format("15:04:05 UTC")},
		{healthz(withPods(torn)), 1, "; ... no such file or directory"},
		{healthz(withPods(missing)), 1, "PLEG is not healthy: no answer (no socket) since at least "},
		{healthz(withPods(pleg.HealthReport{Reason: long})), 1, "PLEG is not healthy: länger"},
		{func(w http.ResponseWriter, _ *http.Request) { // as plegz.Healthz writes it
			_, _ = io.WriteString(w, `{"level":"warning","healthy":true,"failingPods":[`+
				`{"namespace":"shop","name":"web-0","container":"app","stuckSince":"2026-01-02T03:04:05Z"}]}`)
		}, 0, "PLEG is healthy, but shop/web-0 app is stuck since 2 Jan 03:04 UTC"},
		{http.NotFound, 2, "404 Not Found"},
		{func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }, 2, "200 OK, without a health"},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			_ = json.NewEncoder(w).Encode(pleg.HealthReport{Healthy: true})
		}, 2, "418"},
	} {
		answer = tt.answer
		checked(t, tt.code, tt.says, "--listen", address, "--for", patience.String())
	}
	answer = proctest.SwitchesProtocols(t) // its answer has no end
	checked(t, 2, "101", "--listen", address)
	answer = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	checked(t, 2, "does not answer", "--listen", address, "--for", "1s")

	checked(t, 2, "the agent does not answer", "--listen", proctest.FreeAddress(t))

	socket := filepath.Join(t.TempDir(), "agent.sock")
	checked(t, 2, "no such file", "--listen", "unix://"+socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fine.Pods = 7
	go func() { _ = http.Serve(l, healthz(agentReport{HealthReport: fine})) }()
	checked(t, 0, "PLEG is healthy: 7 pods", "--listen", "unix://"+socket, "--for", patience.String())
}

func TestFit(t *testing.T) {
	for _, text := range []string{
		"", "short", strings.Repeat("x", 80), strings.Repeat("x", 81), strings.Repeat("ü", 80), "x" + strings.Repeat("漢", 80),
		"a\nb\x1b[31m" + strings.Repeat("y", 90),
	} {
		got := fit(text)
		if len(got) > maxVerdictBytes || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\x1b") ||
			len(text) <= maxVerdictBytes && got != text {
			t.Errorf("%q: %q", text, got)
		}
		if got := ending(text, 45); len(got) > 49 || !utf8.ValidString(got) {
			t.Errorf("%q ends in %q", text, got)
		}
	}
}
