package plegz_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegtest"
	"github.com/kubepleg/pleg/plegz"
)

// serve serves the handler as an agent does, until stop is called.
func (n *node) serve() (l *pipeListener, stop func()) {
	l = newPipeListener()
	server := &http.Server{Handler: n, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }()
	return l, func() {
		_ = server.Close()
		time.Sleep(time.Second) // of the bubble: the server closes some connections late
		synctest.Wait()
	}
}

// ask sends the beginning of a request, or all of it.
func ask(t *testing.T, l *pipeListener, request string) net.Conn {
	t.Helper()
	c := l.dial()
	if _, err := io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return c
}

// Clients that send a request slowly, or a body that is never complete, are refused, and
// hold nothing that another would need.
func TestSlowRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		code    int // 0 if there is no answer
	}{
		"no request":           {"", 0},
		"half a request line":  {"GET /?format=js", 0},
		"headers without end":  {"GET / HTTP/1.1\nHost: localhost\nX: ", 0},
		"a body never sent":    {"GET /?format=json HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 413},
		"half a body":          {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10\n\nabc", 413},
		"a large body":         {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10000000000\n\n", 413},
		"chunks without end":   {"GET / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n", 413},
		"a body for a stream":  {"GET /?format=stream HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 413},
		"a body on request":    {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 10\nExpect: 100-continue\n\n", 413},
		"a body that is empty": {"GET / HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n", 200},
		"POST":                 {"POST / HTTP/1.1\nHost: localhost\nContent-Length: 10\n\n", 405},
		"a refused host":       {"GET / HTTP/1.1\nHost: evil.example\n\n", 403},
		"two hosts":            {"GET / HTTP/1.1\nHost: localhost\nHost: evil.example\n\n", 400},
		"a host in the target": {"GET http://evil.example/ HTTP/1.1\nHost: localhost\n\n", 403},
		"a long query": {"GET /?" + strings.Repeat("format=json&", 5000) + " HTTP/1.1\nHost: localhost\n\n",
			414},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				l, stop := n.serve()
				var clients []net.Conn
				for range map[bool]int{false: 100, true: 10}[tt.code == 200] { // 100 are not answered at once
					clients = append(clients, ask(t, l, tt.request))
				}
				if tt.code == 0 {
					n.pass(6 * time.Second)
				}
				for _, c := range clients {
					began := time.Now()
					response, err := http.ReadResponse(bufio.NewReader(c), nil)
					if tt.code != 0 && err != nil {
						t.Fatal(err)
					}
					if err == nil && tt.code != 0 && response.StatusCode != tt.code {
						t.Errorf("%d, want %d", response.StatusCode, tt.code)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("the answer takes %v", took)
					}
				}
				if w := n.get("/"); w.Code != http.StatusOK {
					t.Errorf("another client gets %d", w.Code)
				}
				for _, c := range clients {
					_ = c.Close()
				}
				stop()
			})
		})
	}
}

// A client that takes an answer slowly is disconnected after a minute, although it always
// takes some of it.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(1000)
		l, stop := n.serve()
		c := ask(t, l, "GET /?format=json HTTP/1.1\nHost: localhost\n\n")
		began, taken := time.Now(), 0
		for b := make([]byte, 64<<10); ; {
			read, err := io.ReadFull(c, b)
			taken += read
			if err != nil {
				break
			}
			time.Sleep(9 * time.Second) // of the bubble
		}
		if took := time.Since(began); took < 30*time.Second || took > 70*time.Second {
			t.Errorf("disconnected after %v and %d bytes", took, taken)
		}
		stop()
	})
}

// setPods has the runtime list running pods.
func (n *node) setPods(count int) {
	for i := range count {
		n.setPod("team", fmt.Sprintf("pod-%04d", i), plegtest.Running(fmt.Sprintf("container-%04d", i)))
	}
	n.pass(2 * time.Second)
}

// Clients that read nothing cost little memory: what they are sent is there once for all.
func TestClientMemory(t *testing.T) {
	for _, format := range []string{"stream", "json", "text", "html"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.setPods(1000)
				size := n.get("/?format=" + strings.ReplaceAll(format, "stream", "json")).Body.Len()
				l, stop := n.serve()
				before := heapInUse()
				var clients []net.Conn
				answered := 0
				for range 200 {
					c := ask(t, l, "GET /?format="+format+" HTTP/1.1\nHost: localhost\n\n")
					// Who has read the headers and a little more is being sent the rest.
					beginning := make([]byte, 1000)
					_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
					if _, err := io.ReadFull(c, beginning); err == nil && bytes.Contains(beginning, []byte(" 200 OK")) {
						answered++
					}
					clients = append(clients, c)
				}
				synctest.Wait()
				each := (heapInUse() - before) / max(1, answered)
				t.Logf("%d bytes for each of %d clients of an answer of %d", each, answered, size)
				if limit := 100 << 10; each > limit || answered != 64 || format == "json" && size < 4*limit {
					t.Errorf("%d bytes for each of %d clients of an answer of %d", each, answered, size)
				}
				n.pass(11 * time.Second)
				for _, c := range clients {
					_ = c.Close()
				}
				stop()
				if w := n.get("/"); w.Code != http.StatusOK {
					t.Errorf("afterwards: %d", w.Code)
				}
			})
		})
	}
}

func heapInUse() int {
	runtime.GC()
	runtime.GC() // what the first moved to be dropped from the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // a heap is not that large
}

// A flood of requests has each document made once between two changes.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		uid := n.setPod("shop", "web", plegtest.Running("nginx"))
		n.pass(time.Second)
		for _, format := range []string{"json", "text"} {
			n.get("/?format=" + format)
			n.pass(400 * time.Millisecond)
			made := n.get("/?format=" + format).Body.String()
			for range 200 {
				time.Sleep(time.Millisecond) // of the bubble
				if n.get("/?format="+format).Body.String() != made {
					t.Fatalf("%s is made anew although nothing has changed", format)
				}
			}
			n.pass(time.Second)
			if n.get("/?format="+format).Body.String() == made {
				t.Errorf("%s is as it was a second ago", format)
			}
		}
		n.ExitContainer(uid, "nginx", 1, "Error")
		n.pass(300 * time.Millisecond)
		for _, format := range []string{"json", "text"} {
			if !strings.Contains(n.get("/?format="+format).Body.String(), "crashed") {
				t.Errorf("%s has not what has changed", format)
			}
		}
	})
}

// A handler that nobody asks for costs the generator nothing, nor does one whose clients
// have gone for long.
func TestUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(100)
		relist := func() float64 { return testing.AllocsPerRun(100, n.g.Relist) }
		cost := func() string {
			return fmt.Sprintf("%d goroutines, %d subscribers, %v allocations a relist",
				runtime.NumGoroutine(), n.g.HealthReport().Subscribers, relist())
		}
		without := cost()
		n.Handler = plegz.Handler(n.g, n.cache)
		n.pass(time.Minute)
		if got := cost(); got != without {
			t.Errorf("%s; without a handler %s", got, without)
		}
		n.get("/")
		synctest.Wait()
		if got := cost(); got == without {
			t.Errorf("no cost is seen while somebody looks: %s", got)
		}
		n.pass(11 * time.Minute)
		if got := cost(); got != without {
			t.Errorf("%s after the last client; without a handler %s", got, without)
		}
	})
}

// A viewer of a node of a thousand pods, of which 50 change a second, costs the agent a few
// times what the changes cost it themselves, measured by what is allocated.
// BenchmarkViewer has the CPU time.
func TestViewerCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.setPods(1000)
		state := pleg.ContainerStateExited
		change := func() (allocated float64) {
			before := totalAlloc()
			for i := range 500 {
				n.SetContainer(types.UID(fmt.Sprintf("team/pod-%04d", i)), fmt.Sprintf("container-%04d", i), state)
				n.pass(20 * time.Millisecond)
			}
			if state == pleg.ContainerStateExited {
				state = pleg.ContainerStateRunning
			} else {
				state = pleg.ContainerStateExited
			}
			return float64(totalAlloc()-before) / 10
		}
		without := change()
		l, stop := n.serve()
		c := ask(t, l, "GET /?format=stream HTTP/1.1\nHost: localhost\n\n")
		go func() { _, _ = io.Copy(io.Discard, c) }()
		n.pass(2 * time.Second)
		with := change()
		_ = c.Close()
		stop()
		t.Logf("%.0f kB a second without a viewer, %.0f with one", without/1000, with/1000)
		if with > 5*without {
			t.Errorf("%.0f kB are allocated a second with a viewer, %.0f without", with/1000, without/1000)
		}
	})
}

func totalAlloc() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
