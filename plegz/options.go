package plegz

import (
	"context"
	"slices"
	"strings"
)

// DefaultHistory is the default of WithHistory.
const DefaultHistory = 1000

// Option is an option of Handler. A nil Option is ignored.
type Option func(*options)

type options struct {
	node    string
	version string
	links   []string
	labels  bool
	hosts   []string        // Host headers that other machines may send; empty: this machine only
	record  context.Context // history is recorded until this context ends; nil: only after requests
	history int
	// The events and conditions of WithPast. pastEnds has the newest end of each container in it, by ID.
	pastEvents     []Event
	pastEnds       map[string]Event
	pastConditions []PastCondition
}

func newOptions(opts []Option) options {
	o := options{history: DefaultHistory}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	o.pastEnds = make(map[string]Event)
	for _, e := range o.pastEvents {
		if e.ExitCode != nil {
			o.pastEnds[e.ContainerID] = e
		}
	}
	o.pastEvents = slices.Clone(o.pastEvents[max(0, len(o.pastEvents)-o.history):])
	return o
}

// WithNodeName sets the name of the node, for example for the page's title. By default the page
// shows no name.
func WithNodeName(name string) Option { return func(o *options) { o.node = name } }

// WithVersion sets the name and version of the agent, such as "plegwatch v1.2.3". By default the
// page shows none.
func WithVersion(version string) Option { return func(o *options) { o.version = version } }

// WithLinks adds links to other paths of the agent, such as "/metrics" and "/healthz". It ignores
// texts that are not absolute paths. By default there are no links.
func WithLinks(paths ...string) Option {
	return func(o *options) {
		for _, path := range paths {
			if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
				o.links = append(o.links, path)
			}
		}
	}
}

// WithLabels adds the labels and annotations of pods to the answers. Labels and annotations may
// contain secrets. By default they are left out.
func WithLabels() Option { return func(o *options) { o.labels = true } }

// AnyHost allows every Host header, as a host of WithRemoteAccess or Guard. Then, by DNS
// rebinding, any web page that a viewer visits can reach the handler.
const AnyHost = "*"

// WithRemoteAccess allows requests from other machines if their Host header, without the port, is
// one of hosts. Without hosts, which is the default, only requests from this machine are allowed.
// There is no authentication; wrap the handler to add it.
func WithRemoteAccess(hosts ...string) Option {
	return func(o *options) { o.hosts = hosts }
}

// WithRecording records history from the creation of the handler until ctx ends, even without
// requests. Until then the handler runs one goroutine.
func WithRecording(ctx context.Context) Option { return func(o *options) { o.record = ctx } }

// WithPast adds events and conditions from before the agent began, for example from the history of
// an earlier agent. The oldest comes first. The page shows the newest, see WithHistory. If the runtime
// has forgotten how a container ended, all events are searched for its end. Until the first list, the
// page names the problems with which the conditions end. By default there are none.
func WithPast(events []Event, conditions []PastCondition) Option {
	return func(o *options) { o.pastEvents, o.pastConditions = events, conditions }
}

// WithHistory sets how many events the page remembers. The page also remembers as many removed
// containers and pods, of which at most a hundred are pods. A zero or negative number selects
// DefaultHistory, the default. A thousand entries take about two megabytes.
func WithHistory(entries int) Option {
	return func(o *options) {
		o.history = DefaultHistory
		if entries > 0 {
			o.history = entries
		}
	}
}
