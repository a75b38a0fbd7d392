package plegz_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// Healthz answers every client under every host name. Its status code reflects the health, and its
// body is the report.
func TestHealthz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(3)
		healthz := plegz.Healthz(n.g)
		ask := func(method string) *httptest.ResponseRecorder {
			r, w := httptest.NewRequest(method, "http://node-7:9100/healthz?verbose", nil), httptest.NewRecorder()
			r.RemoteAddr = "10.0.0.7:5"
			healthz.ServeHTTP(w, r)
			return w
		}
		expect := func(code int, reason string) {
			t.Helper()
			w := ask(http.MethodGet)
			var report pleg.HealthReport
			if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil {
				t.Fatalf("%v in %s", err, w.Body)
			}
			if w.Code != code || report.Healthy != (code == http.StatusOK) || !strings.HasPrefix(report.Reason, reason) ||
				report.Pods != 3 || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%d %v %+v, want %d and %s", w.Code, w.Header(), report, code, reason)
			}
		}
		expect(http.StatusOK, "")
		if w := ask(http.MethodPost); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
			t.Errorf("POST: %d %v", w.Code, w.Header())
		}
		n.Fail(plegtest.GetPods, plegtest.AnyPod, errors.New(strings.Repeat("long\u202e", 100_000)))
		n.pass(4 * time.Minute)
		expect(http.StatusServiceUnavailable, "pleg was last seen active ")
		if body := ask(http.MethodGet).Body.String(); len(body) > 10_000 || strings.Contains(body, "\u202e") {
			t.Errorf("%d bytes: %.300s", len(body), body)
		}
	})
}

// The answer of Healthz begins with the page's sentence. It and the page's JSON contain the names and IDs with which
// crictl and ps find the object of a stuck call.
func TestHealthzFindsWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		calls := []pleg.RuntimeCall{{
			Method: "ContainerStatus", PodUID: "shop/a", Object: "container a (0123456789abc…)",
			ObjectID: "0123456789abcdef0123",
		}}
		n := newIdleNode(t, &reporter{fake, calls}, fake)
		c := plegtest.Running("0123456789abcdef0123")
		c.Name = "a"
		a := n.setPod("shop", "a", c)
		calls[0].Since = time.Now()
		n.BlockIgnoringCancel(plegtest.GetPodStatus, a)
		n.g.Start(t.Context())
		n.pass(20 * time.Second)
		w := httptest.NewRecorder()
		plegz.Healthz(n.g).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		const begin = "{\n  \"level\": \"warning\",\n" +
			"  \"sentence\": \"Degraded: container a (0123456789abc…) of pod shop/a has been stuck since "
		if !strings.HasPrefix(w.Body.String(), begin) {
			t.Errorf("%.300s", w.Body)
		}
		if strings.Contains(w.Body.String(), "earlier agent") {
			t.Errorf("%.600s", w.Body)
		}
		type found struct{ Namespace, Name, Container, ContainerID, SandboxID string }
		var got struct{ CallsInFlight, FailingPods []found }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := found{"shop", "a", "a", "0123456789abcdef0123", "shop/a-sandbox"}
		page := struct {
			Health *struct{ CallsInFlight, FailingPods []found }
		}{}
		if err := json.Unmarshal(n.get("/?format=json").Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		for _, got := range []struct{ CallsInFlight, FailingPods []found }{got, *page.Health} {
			if !slices.Equal(got.CallsInFlight, []found{want}) || !slices.Equal(got.FailingPods, []found{want}) {
				t.Errorf("%+v", got)
			}
		}
		n.Heal()
	})
}

// Until the first list, the notes name the problems that an earlier agent saw last.
func TestHealthzHasThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := plegtest.NewRuntime()
		n := newIdleNode(t, fake, fake)
		heal := n.Block(plegtest.GetPods, plegtest.AnyPod)
		n.g.Start(t.Context())
		n.pass(time.Second)
		healthz := plegz.Healthz(n.g, plegz.PastCondition{Time: time.Now(), Condition: plegz.Condition{
			Level: plegz.LevelError, Sentence: "Not healthy: no.",
		}})
		for _, want := range []bool{true, false} {
			w := httptest.NewRecorder()
			healthz.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			if strings.Contains(w.Body.String(), `"an earlier agent saw problems since `) != want {
				t.Errorf("want the past: %v, got %s", want, w.Body)
			}
			heal()
			n.pass(2 * time.Second)
		}
	})
}
