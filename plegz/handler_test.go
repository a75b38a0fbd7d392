package plegz_test

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// golden compares got with a file in testdata.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := "testdata/" + file
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -rewrite writes it:\n%s", path, diff)
	}
}

// The test compares the text and the JSON of a node with golden files. One pod of the node runs,
// one crashed and was restarted, one was removed, one has an unconfirmed exit, and the inspection
// of one is stuck.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPod("shop", "web-0", plegtest.Running("nginx"))
		cart := n.setPod("shop", "cart-0", plegtest.Running("cart"))
		report := n.setPod("jobs", "report", plegtest.Running("fetch"))
		n.setPod("shop", "queue-0", plegtest.Running("queue"))
		payment := n.setPod("shop", "payment-0", plegtest.Running("payment"))
		n.pass(2500 * time.Millisecond)
		n.get("/")                      // starts recording; samples are midway between relists
		n.pass(1007 * time.Millisecond) // so that no inspection runs at the time of a sample
		do := func(action func()) {
			action()
			n.pass(10 * time.Millisecond) // so that the events come in the order of the actions
		}
		do(func() { n.ExitContainer(cart, "cart", 137, "OOMKilled") })
		do(func() { n.ExitContainer(report, "fetch", 0, "Completed") })
		do(func() { n.RestartContainer(cart, "cart", "cart-2") })
		do(func() { n.RemoveContainer(cart, "cart") })
		do(func() { n.RemovePod(report) })
		do(func() { n.EmitExit(pleg.ContainerExit{ContainerID: "queue", ExitCode: 137, FinishedAt: time.Now()}) })
		n.Block(plegtest.GetPodStatus, payment)
		do(func() { n.ExitContainer(payment, "payment", 1, "Error") })
		n.pass(20 * time.Second)
		epoch := regexp.MustCompile(`"position": "[0-9a-f]{16}\.`)
		golden(t, "node.txt", n.get("/?format=text").Body.Bytes())
		golden(t, "node.json", epoch.ReplaceAll(n.get("/?format=json").Body.Bytes(), []byte(`"position": "epoch.`)))
	})
}

// The query's format wins over the Accept header. Without both, the format is text.
func TestFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for _, tt := range []struct {
			target, accept, media string
			code                  int
		}{
			{"/", "", "text/plain; charset=utf-8", http.StatusOK},
			{"/", "*/*", "text/plain; charset=utf-8", http.StatusOK},
			{"/", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", http.StatusOK},
			{"/", "application/json", "application/json", http.StatusOK},
			{"/", "text/plain, application/json", "text/plain; charset=utf-8", http.StatusOK},
			{"/?format=json", "text/html", "application/json", http.StatusOK},
			{"/?format=html", "", "text/html; charset=utf-8", http.StatusOK},
			{"/?format=xml", "", "text/plain; charset=utf-8", http.StatusBadRequest},
			{"/?format=", "", "text/plain; charset=utf-8", http.StatusBadRequest},
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				r := request(tt.target)
				r.Method = method
				r.Header.Set("Accept", tt.accept)
				w := httptest.NewRecorder()
				n.ServeHTTP(w, r)
				if w.Code != tt.code || w.Header().Get("Content-Type") != tt.media {
					t.Errorf("%s %s, Accept %q: %d %s, want %d %s", method, tt.target, tt.accept, w.Code,
						w.Header().Get("Content-Type"), tt.code, tt.media)
				}
				if method == http.MethodHead && w.Code == http.StatusOK && w.Body.Len() > 0 {
					t.Errorf("HEAD %s has a body", tt.target)
				}
			}
		}
	})
}

// The handler takes the time from the generator's clock.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		g := pleg.NewGenericPLEG(n.Runtime, 0, 0, pleg.NewCache(), clocktesting.NewFakeClock(then))
		n.Handler = plegz.Handler(g)
		if got := n.state().Time; !got.Equal(then) {
			t.Errorf("%v, want %v", got, then)
		}
		g.Stop()
	})
}

// With a nil generator, Handler and Healthz panic, and the panic names the function.
func TestNoGenerator(t *testing.T) {
	for name, f := range map[string]func(){
		"Handler": func() { plegz.Handler(nil) },
		"Healthz": func() { plegz.Healthz(nil) },
	} {
		func() {
			defer func() {
				if p := recover(); p != "plegz: "+name+" needs a generator" {
					t.Errorf("%s: %v", name, p)
				}
			}()
			f()
		}()
	}
}
