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
	// closeGrace is how long answers in progress may take at the end.
	closeGrace = time.Second
	// listenPeriod is the time between two attempts to listen on an address that is taken.
	listenPeriod = 5 * time.Second
	// A client must have sent its request and taken its answer within these times. Streams of the
	// page have deadlines of their own.
	readTimeout, writeTimeout = 10 * time.Second, 20 * time.Second
	// unixScheme begins the address of a unix socket.
	unixScheme = "unix://"
)

// server serves the page, /metrics and /healthz on some addresses.
type server struct {
	log  *slog.Logger
	ctx  context.Context    // for requests
	end  context.CancelFunc // ends ctx
	http []*http.Server     // one for each address, so that clients of one do not keep out those of another
	work sync.WaitGroup     // a goroutine for each address
}

// serve begins to serve a handler on addresses. With wait, it retries an address that is taken,
// because any local user can take a port before the agent does.
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

// newServer returns a server whose memory and files no client can exhaust. Connections have
// deadlines and small buffers, and their number is bounded.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:  handler,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),

		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnState: new(clients).note,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			// The kernel would buffer megabytes for a client that does not read.
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

// serve serves on a listener. After an error it tries to listen again first.
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
	_ = on.Serve(l) // ends only with close
}

// close ends the server and returns when it has ended.
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

// listen listens on a port, or on a unix socket that only the user of this process may open.
func listen(address string) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(address, unixScheme)
	if !isSocket {
		return net.Listen("tcp", listenAddress(address))
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
	} else if info, statErr := os.Lstat(path); errors.Is(err, syscall.ECONNREFUSED) && statErr == nil &&
		info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path) // left by a process that was killed
	}
	var l net.Listener
	var err error
	withUmask(0o177, func() { l, err = net.Listen("unix", path) })
	return l, err
}

// addressOf returns the address of a listener, in the form in which --listen takes it or as a URL.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return unixScheme + l.Addr().String()
	}
	return "http://" + l.Addr().String() + "/"
}

// listenAddress returns address, on the loopback interface if it is a port alone. By default nobody
// else can read the metrics of a node.
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
	earlier plegz.Option) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", plegz.Handler(generator, plegz.WithNodeName(f.nodeName), plegz.WithRecording(ctx),
		plegz.WithVersion(program+" "+buildOf().version), plegz.WithLinks("/metrics", "/healthz"), earlier))
	mux.Handle("/metrics", &answers{next: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})})
	mux.Handle("/healthz", &answers{next: plegz.Healthz(generator)})
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

// nodeNameGauge is the kubelet's metric by which the rules of kubernetes-mixin name the node.
func nodeNameGauge(name string) prometheus.Collector {
	return constant("kubelet_node_name", "The node's name. The count is always 1.",
		prometheus.Labels{"node": strings.ToValidUTF8(name, "\uFFFD")})
}

// answerAge is how old an answer of /metrics or /healthz may be.
const answerAge = time.Second

// answers caches the answers of a handler for answerAge. Repeated requests then cost little, and
// clients that do not read share the bytes of one answer.
type answers struct {
	next http.Handler

	mu     sync.Mutex
	recent map[form]*answer // guarded by mu
	since  time.Time        // when the oldest was made; guarded by mu
}

// form is what a request asks for. There are few forms, however clients spell their headers.
type form struct {
	method, encoding string
	format           expfmt.Format
}

// formOf returns the form that a request asks for.
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
	_, _ = w.Write(to.body) // the client may be gone
}

// answerTo returns the recent answer to such a request, and makes it if there is none.
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

// answer is an http.ResponseWriter that keeps what is written.
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
