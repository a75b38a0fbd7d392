package plegz_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/plegz"
)

// The handler answers only GET and HEAD requests at its own path. A request must come from this
// machine, and not from a page of another site.
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
			{"remote", plegz.WithRemoteAccess(plegz.AnyHost), both("10.0.0.7:5", "node-7:9100"), 200},
			{"remote by name", plegz.WithRemoteAccess("node-7"), both("10.0.0.7:5", "NODE-7:9100"), 200},
			{"remote by another name", plegz.WithRemoteAccess("node-7"), both("10.0.0.7:5", "evil.example:9100"), 403},
			{"remote, another origin", plegz.WithRemoteAccess(plegz.AnyHost), set("Origin", "http://evil.example"), 403},
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

// Behind a mux, the handler answers only the exact path at which it is registered.
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

// contextWithLocal returns the request's context with the address of a listener, as a server sets
// it.
func contextWithLocal(r *http.Request, local net.Addr) context.Context {
	return context.WithValue(r.Context(), http.LocalAddrContextKey, local)
}

// Guard refuses the same requests as Handler, at every path, and passes all others on.
func TestGuard(t *testing.T) {
	passed := 0
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ })
	for _, tt := range []struct {
		name string
		host string
		edit func(*http.Request)
		want int
	}{
		{"as it is", "", func(*http.Request) {}, 200},
		{"HEAD", "", func(r *http.Request) { r.Method = http.MethodHead }, 200},
		{"POST", "", func(r *http.Request) { r.Method = http.MethodPost }, 405},
		{"a body", "", func(r *http.Request) { r.ContentLength = 1 }, 413},
		{"another machine", "", func(r *http.Request) { r.RemoteAddr = "10.0.0.7:5" }, 403},
		{"rebound name", "", func(r *http.Request) { r.Host = "evil.example:9100" }, 403},
		{"another site", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"remote", "node-7", func(r *http.Request) {
			r.RemoteAddr, r.Host = "10.0.0.7:5", "node-7:9100"
		}, 200},
		{"any name", plegz.AnyHost, func(r *http.Request) {
			r.RemoteAddr, r.Host = "10.0.0.7:5", "evil.example:9100"
		}, 200},
	} {
		for _, path := range []string{"/", "/pods", "/a/b"} {
			r, w, before := request(path), httptest.NewRecorder(), passed
			tt.edit(r)
			var hosts []string
			if tt.host != "" {
				hosts = append(hosts, tt.host)
			}
			plegz.Guard(next, hosts...).ServeHTTP(w, r)
			if w.Code != tt.want || (passed > before) != (tt.want == 200) {
				t.Errorf("%s at %s: %d, want %d; passed on: %v", tt.name, path, w.Code, tt.want, passed > before)
			}
		}
	}
}
