package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/plegz"
)

const (
	// closeGrace is the time that requests in progress get when the program ends.
	closeGrace = time.Second
	// listenPeriod is the time between two attempts to listen on an address that is taken.
	listenPeriod = 5 * time.Second
	// A client must send its request within readTimeout and read the answer within writeTimeout.
	// The page's streams set their own deadlines.
	readTimeout, writeTimeout = 10 * time.Second, 20 * time.Second
	// unixScheme is the prefix of a unix socket's address.
	unixScheme = "unix://"
)

// server serves the page, /metrics and /healthz on one or more addresses.
type server struct {
	log  *slog.Logger
	ctx  context.Context    // the context of all requests
	end  context.CancelFunc // ends ctx
	http []*http.Server     // one for each address, each with its own limit of clients
	work sync.WaitGroup     // one goroutine for each address
}

// serve starts serving a handler on addresses. If wait is true, it keeps trying an address that is
// taken, because any local user can take a port before the agent does.
func serve(addresses []string, wait bool, handler http.Handler, log *slog.Logger) (*server, error) {
	s := &server{log: log}
	s.ctx, s.end = context.WithCancel(context.Background())
	for _, address := range addresses {
		l, err := listen(address)
		if err != nil && (!wait || !errors.Is(err, syscall.EADDRINUSE)) {
			s.close()
			return nil, fmt.Errorf("serving: %w", err)
		}
		on := newServer(handler, log)
		on.BaseContext = func(net.Listener) context.Context { return s.ctx }
		s.http = append(s.http, on)
		s.work.Go(func() { s.serve(on, address, l, err) })
	}
	return s, nil
}

// newServer returns a server that limits how much memory and how many files clients can use:
// connections have deadlines and small buffers, and their number is limited.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:  handler,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),

		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnState: new(clients).note,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			// Without a limit, the kernel buffers megabytes for a client that does not read.
			if c, ok := conn.(interface{ SetReadBuffer(bytes int) error }); ok {
				_ = c.SetReadBuffer(16 << 10)
			}
			if c, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
				_ = c.SetWriteBuffer(64 << 10)
			}
			return ctx
		},
	}
}

// serve serves on the listener l. If err is not nil, there is no listener yet: serve then tries the
// address until listening succeeds.
func (s *server) serve(on *http.Server, address string, l net.Listener, err error) {
	if err != nil {
		s.log.Error("The address is taken, and is tried again", "address", address, "error", err)
	}
	for err != nil {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(listenPeriod):
			l, err = listen(address)
		}
	}
	s.log.Info("Serving the page, /metrics and /healthz", "address", addressOf(l))
	_ = on.Serve(l) // returns after close
}

// close ends the server and waits until its goroutines have ended.
func (s *server) close() {
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	for _, on := range s.http {
		if on.Shutdown(ctx) != nil {
			_ = on.Close()
		}
	}
	s.work.Wait()
}

// listen listens on a TCP port, or on a unix socket that only this process's user may open.
func listen(address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, unixScheme)
	if !isSocket {
		return net.Listen("tcp", listenAddress(address))
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
	} else if info, statErr := os.Lstat(path); errors.Is(err, syscall.ECONNREFUSED) && statErr == nil &&
		info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path) // the socket was left by a killed process
	}
	var l net.Listener
	var err error
	withUmask(0o177, func() { l, err = net.Listen("unix", path) })
	return l, err
}

// addressOf returns a listener's address for the log: a URL for a port, unix:///path for a socket.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return unixScheme + l.Addr().String()
	}
	return "http://" + l.Addr().String() + "/"
}

// listenAddress returns the address to listen on. It puts a bare port on the loopback interface, so
// that other machines cannot read the node's metrics by default.
func listenAddress(address string) string {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if port, alone := strings.CutPrefix(address, ":"); alone {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// newHandler returns the handler of all paths. The page records history until ctx ends.
func newHandler(ctx context.Context, f flags, generator *pleg.GenericPLEG, metrics prometheus.Gatherer,
	earlier *past) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", plegz.Handler(generator, plegz.WithNodeName(f.nodeName), plegz.WithRecording(ctx),
		plegz.WithVersion(program+" "+buildOf().version), plegz.WithLinks("/metrics", "/healthz"), earlier.option()))
	mux.Handle("/metrics", &answers{next: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})})
	mux.Handle("/healthz", &answers{next: plegz.Healthz(generator, earlier.conditions()...)})
	if f.pprof {
		local := http.NewServeMux()
		local.HandleFunc("/debug/pprof/", pprof.Index)
		local.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		local.HandleFunc("/debug/pprof/profile", pprof.Profile)
		local.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		local.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", plegz.Guard(local))
	}
	return plegz.Guard(mux, plegz.AnyHost)
}

// nodeNameGauge returns the metric kubelet_node_name. The rules of kubernetes-mixin read the node's
// name from it.
func nodeNameGauge(name string) prometheus.Collector {
	return constant("kubelet_node_name", "The node's name. The count is always 1.",
		prometheus.Labels{"node": strings.ToValidUTF8(name, "\uFFFD")})
}

// answerAge is the maximum age of a cached answer of /metrics or /healthz.
const answerAge = time.Second

// answers caches the answers of a handler for answerAge. Repeated requests therefore cost little,
// and slow clients share the memory of one answer.
type answers struct {
	next http.Handler

	mu     sync.Mutex
	recent map[form]*answer // guarded by mu
	since  time.Time        // when the cache was last emptied; guarded by mu
}

// form is the cache key of a request: its method, encoding and format. There are only a few forms,
// however many different headers clients send.
type form struct {
	method, encoding string
	format           expfmt.Format
}

// formOf returns the form of a request.
func formOf(r *http.Request) form {
	f := form{
		method: r.Method, encoding: "identity",
		format: expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...),
	}
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(part, ";")
		if q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64); err == nil && q == 0 {
			continue
		}
		if strings.TrimSpace(name) == "gzip" {
			f.encoding = "gzip"
		}
	}
	return f
}

// ServeHTTP implements http.Handler.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := a.answerTo(r)
	maps.Copy(w.Header(), to.header)
	w.WriteHeader(to.code)
	_, _ = w.Write(to.body) // an error means that the client has gone
}

// answerTo returns the cached answer for the request's form. It calls the handler if the cache has
// none.
func (a *answers) answerTo(r *http.Request) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.since) > answerAge {
		a.recent, a.since = map[form]*answer{}, time.Now()
	}
	f := formOf(r)
	if a.recent[f] == nil {
		r = r.Clone(r.Context())
		r.Header = http.Header{"Accept": {string(f.format)}, "Accept-Encoding": {f.encoding}}
		made := &answer{header: http.Header{}, code: http.StatusOK}
		a.next.ServeHTTP(made, r)
		a.recent[f] = made
	}
	return a.recent[f]
}

// answer is an http.ResponseWriter that stores the response.
type answer struct {
	header http.Header
	code   int
	body   []byte
}

func (a *answer) Header() http.Header  { return a.header }
func (a *answer) WriteHeader(code int) { a.code = code }
func (a *answer) Write(b []byte) (int, error) {
	a.body = append(a.body, b...)
	return len(b), nil
}
