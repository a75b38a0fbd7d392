package plegz

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// maxQuery limits the length of a query. A format and a position are short, and longer queries
// would only use memory.
const maxQuery = 512

// refusal returns why a request is refused, and the status code. why is "" if the request is
// allowed.
func (o *options) refusal(r *http.Request) (why string, code int) {
	if why, code = o.refusalAnywhere(r); why == "" && !ownPath(r) {
		return "there is nothing at this path", http.StatusNotFound
	}
	return why, code
}

// refusalAnywhere works like refusal, but allows every path.
func (o *options) refusalAnywhere(r *http.Request) (why string, code int) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "only GET and HEAD are answered", http.StatusMethodNotAllowed
	case r.ContentLength != 0:
		return "a request with a body is not answered", http.StatusRequestEntityTooLarge
	case len(r.URL.RawQuery) > maxQuery:
		return "the query is too long", http.StatusRequestURITooLong
	case len(o.hosts) == 0 && !fromHere(r):
		return "only requests of this machine are answered", http.StatusForbidden
	case !o.hostAllowed(r):
		return "the Host header is not a name of this machine that is allowed", http.StatusForbidden
	case crossSite(r):
		return "requests of another site's page are not answered", http.StatusForbidden
	default:
		return "", 0
	}
}

// Guard returns a handler that protects next with Handler's checks of method, body, query and
// sender. Unlike Handler, it allows every path. hosts are the hosts of WithRemoteAccess; without
// hosts, only requests from this machine reach next. The handler is safe for concurrent use.
func Guard(next http.Handler, hosts ...string) http.Handler {
	o := newOptions([]Option{WithRemoteAccess(hosts...)})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why, code := o.refusalAnywhere(r); why != "" {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			http.Error(w, "plegz: "+why, code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostAllowed reports whether the Host header is allowed. The check stops DNS rebinding: an
// attacker's name can resolve to this address, but the Host header still contains the name.
func (o *options) hostAllowed(r *http.Request) bool {
	host := hostOf(r.Host)
	return isLoopback(host) || overUnixSocket(r) ||
		slices.ContainsFunc(o.hosts, func(h string) bool { return h == AnyHost || strings.EqualFold(h, host) })
}

// crossSite reports whether a page of another site made the request. It returns false if the viewer
// followed a link on such a page, because that page cannot read the answer.
func crossSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	default:
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
	}
}

// ownPath reports whether the path is exactly the one at which the handler is registered. If a mux
// passed the request on, that path is in the request's pattern. The root is allowed too, because
// http.StripPrefix leaves it.
func ownPath(r *http.Request) bool {
	if r.URL.Path == "" || r.URL.Path == "/" {
		return true
	}
	pattern := r.Pattern
	if i := strings.IndexByte(pattern, '/'); i >= 0 {
		pattern = strings.TrimSuffix(pattern[i:], "{$}")
		return r.URL.Path == pattern
	}
	return false
}

// fromHere reports whether the request comes from this machine. An outer handler may have set the
// remote address from a header, so the connection's local address must be loopback too.
func fromHere(r *http.Request) bool {
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return overUnixSocket(r) || isLoopback(hostOf(r.RemoteAddr)) && (!known || isLoopback(hostOf(local.String())))
}

// overUnixSocket reports whether the request came over a unix socket. The clients of a unix socket
// are on this machine, and their Host header has no meaning.
func overUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// hostOf returns the host of an address, which may include a port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
