package plegz

import "strings"

// DefaultHistory is the number of containers and pods that are gone, and of events, that are
// remembered.
const DefaultHistory = 1000

// Option is an option of Handler. A nil Option is ignored.
type Option func(*options)

type options struct {
	node    string
	version string
	links   []string
	labels  bool
	remote  bool
	hosts   []string
	history int
}

func newOptions(opts []Option) options {
	o := options{history: DefaultHistory}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// WithNodeName shows the name of the node, in the title among others. By default there is none.
func WithNodeName(name string) Option { return func(o *options) { o.node = name } }

// WithVersion shows the name and the version of the agent, such as "plegwatch v1.2.3". By default there is none.
func WithVersion(version string) Option { return func(o *options) { o.version = version } }

// WithLinks has the page link to other addresses of the agent, such as "/metrics" and "/healthz". What is not an
// absolute path is left out. By default there are none.
func WithLinks(paths ...string) Option {
	return func(o *options) {
		for _, path := range paths {
			if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
				o.links = append(o.links, path)
			}
		}
	}
}

// WithLabels shows the labels and annotations of pods, which may hold what not everyone
// should see. By default they are not shown.
func WithLabels() Option { return func(o *options) { o.labels = true } }

// WithRemoteAccess answers requests of other machines too. The Host header must then be
// one of hosts, without a port, or loopback; with no hosts it may be anything, which lets
// any web page that a viewer visits reach the handler by a name of its own that resolves to
// this address. By default only requests of this machine are answered. There is no
// authentication: that is for a handler around this one.
func WithRemoteAccess(hosts ...string) Option {
	return func(o *options) { o.remote, o.hosts = true, hosts }
}

// WithHistory sets how many containers and pods that are gone are remembered, and how many
// events. A zero or negative number selects DefaultHistory, the default. A thousand take
// about two megabytes.
func WithHistory(entries int) Option {
	return func(o *options) {
		o.history = DefaultHistory
		if entries > 0 {
			o.history = entries
		}
	}
}
