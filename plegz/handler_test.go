package plegz_test

import (
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// golden compares with a file of testdata.
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

// The text and the JSON of a node with a pod that runs, one that crashes and is restarted,
// one that is gone, and one whose inspection hangs.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, plegz.WithNodeName("node-7"))
		n.setPod("shop", "web-0", plegtest.Running("nginx"))
		cart := n.setPod("shop", "cart-0", plegtest.Running("cart"))
		report := n.setPod("jobs", "report", plegtest.Running("fetch"))
		payment := n.setPod("shop", "payment-0", plegtest.Running("payment"))
		n.pass(2500 * time.Millisecond)
		n.get("/") // from now on there is a history, with samples between two relists
		n.pass(time.Second)
		do := func(action func()) {
			action()
			n.pass(10 * time.Millisecond) // so that the order is that of the actions
		}
		do(func() { n.ExitContainer(cart, "cart", 137, "OOMKilled") })
		do(func() { n.ExitContainer(report, "fetch", 0, "Completed") })
		do(func() { n.RestartContainer(cart, "cart", "cart-2") })
		do(func() { n.RemoveContainer(cart, "cart") })
		do(func() { n.RemovePod(report) })
		n.Hang(plegtest.GetPodStatus, payment)
		do(func() { n.ExitContainer(payment, "payment", 1, "Error") })
		n.pass(20 * time.Second)
		epoch := regexp.MustCompile(`"position": "[0-9a-f]{16}\.`)
		golden(t, "node.txt", n.get("/?format=text").Body.Bytes())
		golden(t, "node.json", epoch.ReplaceAll(n.get("/?format=json").Body.Bytes(), []byte(`"position": "epoch.`)))
	})
}

// The format comes from the query, else from what the client accepts, else it is text.
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

// Only reading requests of this machine, at the handler's own path and of its own page, are
// answered.
func TestAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := func(header ...string) func(*http.Request) {
			return func(r *http.Request) {
				for i := 0; i < len(header); i += 2 {
					r.Header.Set(header[i], header[i+1])
				}
			}
		}
		host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
		from := func(a string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = a } }
		method := func(m string) func(*http.Request) { return func(r *http.Request) { r.Method = m } }
		query := func(q string) func(*http.Request) { return func(r *http.Request) { r.URL.RawQuery = q } }
		path := func(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }
		both := func(a, h string) func(*http.Request) {
			return func(r *http.Request) { r.RemoteAddr, r.Host = a, h }
		}
		local := plegz.Option(nil)
		for _, tt := range []struct {
			name string
			opt  plegz.Option
			edit func(*http.Request)
			want int
		}{
			{"as it is", local, func(*http.Request) {}, 200},
			{"IPv6", local, both("[::1]:5", "[::1]:9100"), 200},
			{"IPv4 in IPv6", local, from("[::ffff:127.0.0.1]:5"), 200},
			{"no port", local, host("LOCALHOST"), 200},
			{"another machine", local, from("10.0.0.7:5"), 403},
			{"another machine that says it is not", local,
				func(r *http.Request) { r.RemoteAddr = "10.0.0.7:5"; r.Header.Set("X-Forwarded-For", "127.0.0.1") }, 403},
			{"an address that a header has given", local, func(r *http.Request) {
				*r = *r.WithContext(contextWithLocal(r, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9100}))
			}, 403},
			{"a connection to loopback", local, func(r *http.Request) {
				*r = *r.WithContext(contextWithLocal(r, &net.TCPAddr{IP: net.IPv6loopback, Port: 9100}))
			}, 200},
			{"no address", local, from(""), 403},
			{"rebound name", local, host("evil.example:9100"), 403},
			{"localhost in a name", local, host("localhost.evil.example"), 403},
			{"no host", local, host(""), 403},
			{"a port alone", local, host(":9100"), 403},
			{"a trailing dot", local, host("localhost."), 403},
			{"every address", local, host("0.0.0.0:9100"), 403},
			{"an address as a number", local, host("2130706433"), 403},
			{"a short address", local, host("127.1"), 403},
			{"an address in a name", local, host("127.0.0.1.evil.example:9100"), 403},
			{"a user in the host", local, host("localhost@evil.example"), 403},
			{"a loopback address of another kind", local, host("127.8.9.10:9100"), 200},
			{"a long host", local, host(strings.Repeat("localhost.", 10_000)), 403},
			{"forwarded", local, func(r *http.Request) {
				r.Host = "evil.example"
				r.Header.Set("X-Forwarded-Host", "localhost")
				r.Header.Set("Forwarded", "host=localhost;for=127.0.0.1")
			}, 403},
			{"unix socket", local, func(r *http.Request) {
				r.RemoteAddr, r.Host = "@", "plegz"
				*r = *r.WithContext(contextWithLocal(r, &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}))
			}, 200},
			{"another origin", local, set("Origin", "http://evil.example"), 403},
			{"no origin", local, set("Origin", "null"), 403},
			{"own origin", local, set("Origin", "http://localhost:9100"), 200},
			{"an origin that is none", local, set("Origin", "http://%zz"), 403},
			{"a file's origin", local, set("Origin", "file://"), 403},
			{"a longer origin", local, set("Origin", "http://localhost:9100.evil.example"), 403},
			{"same site, another port", local, set("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"), 403},
			{"another site's object", local,
				set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "object"), 403},
			{"an unknown kind of site", local, set("Sec-Fetch-Site", "x"), 403},
			{"another port", local, set("Origin", "http://localhost:9101"), 403},
			{"another site's request", local, set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), 403},
			{"another site's frame", local,
				set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), 403},
			{"another site's link", local,
				set("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), 200},
			{"own request", local, set("Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"), 200},
			{"POST", local, method(http.MethodPost), 405},
			{"PUT", local, method(http.MethodPut), 405},
			{"DELETE", local, method(http.MethodDelete), 405},
			{"OPTIONS", local, method(http.MethodOptions), 405},
			{"TRACE", local, method(http.MethodTrace), 405},
			{"CONNECT", local, method(http.MethodConnect), 405},
			{"no method", local, method(""), 405},
			{"a method in small letters", local, method("get"), 405},
			{"a method of its own", local, method(strings.Repeat("X", 10_000)), 405},
			{"HEAD", local, method(http.MethodHead), 200},
			{"a body", local, func(r *http.Request) { r.ContentLength = 1 }, 413},
			{"a body of unknown length", local, func(r *http.Request) { r.ContentLength = -1 }, 413},
			{"a long query", local, query(strings.Repeat("x&", 1000)), 414},
			{"a query of many", local, query(strings.Repeat("format=json&", 40)), 200},
			{"a query that is none", local, query("%zz;&=&format=text"), 200},
			{"a format in a list", local, query("format=json&format=xml"), 200},
			{"another format", local, query("format=../../etc/passwd"), 400},
			{"a path below", local, path("/page.js"), 404},
			{"a path above", local, path("/../etc/passwd"), 404},
			{"a path above, escaped", local, path("/%2e%2e/"), 404},
			{"a path of its own", local, path("."), 404},
			{"a star", local, path("*"), 404},
			{"a NUL", local, path("/\x00"), 404},
			{"a long path", local, path("/" + strings.Repeat("a/", 100_000)), 404},
			{"two slashes", local, path("//"), 404},
			{"an empty path", local, path(""), 200},
			{"remote", plegz.WithRemoteAccess(), both("10.0.0.7:5", "node-7:9100"), 200},
			{"remote by name", plegz.WithRemoteAccess("node-7"), both("10.0.0.7:5", "NODE-7:9100"), 200},
			{"remote by another name", plegz.WithRemoteAccess("node-7"), both("10.0.0.7:5", "evil.example:9100"), 403},
			{"remote, another origin", plegz.WithRemoteAccess(), set("Origin", "http://evil.example"), 403},
		} {
			n := newNode(t, tt.opt)
			r := request("/")
			tt.edit(r)
			w := httptest.NewRecorder()
			n.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("%s: %d %s, want %d", tt.name, w.Code, w.Body, tt.want)
			}
			if w.Header().Get("Content-Security-Policy") == "" || w.Header().Get("X-Content-Type-Options") != "nosniff" ||
				w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: header %v", tt.name, w.Header())
			}
			if w.Code != 200 && (w.Body.Len() > 100 || n.g.HealthReport().Subscribers > 0) {
				t.Errorf("%s: a refused request costs something: %s", tt.name, w.Body)
			}
			n.g.Stop()
		}
	})
}

// Behind a mux the handler answers the path at which it is registered, and none below it.
func TestMounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		mux := http.NewServeMux()
		mux.Handle("/debug/plegz/", n)
		mux.Handle("GET /plegz", n)
		mux.Handle("/{$}", n)
		mux.Handle("/stripped/", http.StripPrefix("/stripped", n))
		for path, want := range map[string]int{
			"/debug/plegz/": 200, "/debug/plegz/x": 404, "/debug/plegz/%2e%2e/": 404, "/plegz": 200, "/": 200, "/x": 404,
			"/stripped/": 200, "/stripped/x": 404,
		} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, request(path))
			if w.Code != want {
				t.Errorf("%s: %d, want %d", path, w.Code, want)
			}
		}
	})
}

// The clock is the one that was passed, unless that is none.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		for _, tt := range []struct {
			clock clock.PassiveClock
			want  time.Time
		}{{clocktesting.NewFakePassiveClock(then), then}, {nil, time.Now()}} {
			n := newNode(t, plegz.WithClock(tt.clock))
			if got := n.state().Time; !got.Equal(tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
			n.g.Stop()
		}
	})
}

// Without a generator or a cache there is nothing to show.
func TestHandlerPanics(t *testing.T) {
	for _, f := range []func(){
		func() { plegz.Handler(nil, pleg.NewCache()) },
		func() { plegz.Handler(&pleg.GenericPLEG{}, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}
