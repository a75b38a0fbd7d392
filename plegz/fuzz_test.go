package plegz_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// FuzzRequest sends arbitrary requests. Only permitted requests may be answered, and each answer or
// refusal must be short.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: localhost:9100\r\n\r\n",
		"HEAD /?format=json HTTP/1.1\r\nHost: [::1]\r\nAccept: text/html\r\n\r\n",
		"GET /?format=stream&since=x.1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nLast-Event-ID: 0123456789abcdef.7\r\n\r\n",
		"GET //../%2e%2e/ HTTP/1.0\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n",
		"POST /?format=text HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
		"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream;q=1,,;,\r\nOrigin: http://localhost\r\n\r\n",
	} {
		f.Add(seed, "127.0.0.1:50000")
		f.Add(seed, "10.0.0.7:50000")
	}
	n := &node{Runtime: plegtest.NewRuntime(), cache: pleg.NewCache()}
	n.g = pleg.NewGenericPLEG(n.Runtime, 0, time.Hour, n.cache, clock.RealClock{}, pleg.WithLogger(logr.Discard()))
	n.setPod("shop", "web", plegtest.Running("nginx"))
	n.g.Start(f.Context())
	f.Cleanup(n.g.Stop)
	_ = n.g.Relist(f.Context())
	n.Handler = plegz.Handler(n.g)
	f.Fuzz(func(t *testing.T, text, from string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return // the server would refuse this request
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // ends a stream after its first message
		r, r.RemoteAddr = r.WithContext(ctx), from
		w := httptest.NewRecorder()
		n.ServeHTTP(w, r)
		body := w.Body.Bytes()
		if !utf8.Valid(body) || len(body) > 100_000 || w.Code != http.StatusOK && len(body) > 100 {
			t.Errorf("%d and %d bytes", w.Code, len(body))
		}
		if w.Code != http.StatusOK {
			return
		}
		origin, _ := url.Parse(r.Header.Get("Origin"))
		if r.Method != http.MethodGet && r.Method != http.MethodHead || !strings.HasPrefix(from, "127.") &&
			!strings.HasPrefix(strings.TrimPrefix(from, "["), "::") || origin != nil && origin.Host != "" &&
			!strings.EqualFold(origin.Host, r.Host) || strings.Contains(strings.ToLower(r.Host), "evil") {
			t.Errorf("answered: %s %s of %s, Host %s, Origin %v", r.Method, r.URL, from, r.Host, origin)
		}
	})
}
