package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubepleg/pleg/cri"
)

const (
	usageHead = `Usage: ` + program + ` [flags]
       ` + program + ` history DIR [flags]

Prints the lifecycle of a node's pods as it happens.

`
	usageTail = `
The runtime's socket is that of --runtime-endpoint or, without it, of the environment variable
CONTAINER_RUNTIME_ENDPOINT, or of the file that CRI_CONFIG_FILE names, /etc/crictl.yaml if it
names none. If none of them names a socket, a simulated node is watched.

An event is printed if it matches each of --selector, --namespace, --pod and --event that is
given. If one has several values, any may match. Names may be patterns: --pod 'shop/web-*'.

On a terminal the table is as wide as the terminal; elsewhere nothing is cut, and times have a
date. Control characters in names are escaped. With --output json, each line is an object with

  time          when the event was read, as in RFC 3339
  node          the node's name
  namespace     the pod's
  pod           its name
  podUID        its UID
  container     the container's name; missing for a sandbox. PodSync has it only if it corrects
                how the container ended: runtimes learn some reasons late
  containerID   the ID of the container or sandbox; PodSync has it only with container
  sandbox       true if the event is about the pod's sandbox
  event         ContainerStarted, ContainerDied, ContainerEnded, ContainerRemoved or PodSync.
                ContainerEnded comes once after ContainerDied, with the final reason
  initial       true if the first list showed this: it happened before the watch began, or
                before the runtime first answered
  state         of a container: created, running, exited or unknown; of a sandbox: ready or
                not ready; missing when it is gone
  ip            the sandbox's
  restartCount  the container's; missing if 0
  createdAt     when the runtime began to make the sandbox
  startedAt     when the container started, by the runtime's clock
  finishedAt    when it ended
  exitCode      of a container that has exited
  reason        why it has exited
  unconfirmed   true if only an exit event has reported the exit: a PodSync may correct it
  error         why the pod could not be inspected
  lagSeconds    how long after the runtime's timestamp the event was read; missing where the
                runtime has no timestamp, and where initial is true
  cause         why the pod was listed: period, hint (an event of the runtime), exit
                (an exit event reported it) or demand

What is missing is not known, or does not apply.

With --history, the directory also contains each change of the health, with time, node, level,
sentence, notes and report. "plegwatch history DIR" prints a history, without a runtime.
`
)

// Values of --runtime-endpoint that are not sockets.
const (
	// autoEndpoint means: look for a runtime's socket at the usual paths.
	autoEndpoint = "auto"
	// demoEndpoint means: watch a simulated node.
	demoEndpoint = "demo"
)

// flags contains the values of the command line's flags.
type flags struct {
	endpoint  string
	namedBy   string // the variable or file that named the endpoint; empty if the command line did
	wait      bool
	duration  time.Duration // 0 means no limit
	filter    filter
	initial   bool
	since     since
	output    output
	listen    []string
	pprof     bool
	exits     exitEvents
	nodeName  string
	history   string // a directory; empty for none
	size      int    // of the history, in MiB
	logFormat logFormat
	verbosity int
	check     bool
	version   bool
}

// parseFlags parses the command line. If no flag names an endpoint, parseFlags uses crictl's
// settings. If no flag names the node, parseFlags uses the host's name.
func parseFlags(args []string, stderr io.Writer) (flags, error) {
	f := flags{output: outputText, logFormat: logText, exits: cri.DefaultExitsDir}
	fs := newFlagSet(&f)
	fs.SetOutput(stderr)
	if err := fs.Parse(args); err != nil {
		return flags{}, err
	}
	if f.endpoint == "" {
		if err := f.findEndpoint(); err != nil {
			return flags{}, err
		}
	}
	if f.nodeName == "" {
		f.nodeName, _ = os.Hostname() // on an error, metrics and page show no node name
	}
	return f, f.validate(fs.Args())
}

func usage() string { return usageHead + newFlagSet(&flags{}).FlagUsagesWrapped(96) + usageTail }

func newFlagSet(f *flags) *pflag.FlagSet {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	fs.FuncP("runtime-endpoint", "r", "the runtime's `SOCKET`, as unix:///path or /path; auto for where containerd, "+
		"CRI-O, cri-dockerd and k3s usually have theirs; demo for a simulated node", func(s string) error {
		if s == "" {
			return errors.New("it is empty")
		}
		f.endpoint = s
		return nil
	})
	fs.BoolVarP(&f.wait, "wait", "w", false, "wait for a runtime that is away and for an address that is taken, "+
		"instead of failing; needs a SOCKET")
	fs.DurationVarP(&f.duration, "for", "f", 0, "end after this `DURATION`, such as 10s, including the wait for "+
		"a runtime; 0 is until a signal")

	addSelection(fs, f)
	fs.FuncP("selector", "l", "print only events of pods whose labels fit, as `LABELS` of kubectl: app=web,tier!=db",
		func(s string) (err error) {
			f.filter.selector, err = labels.Parse(s)
			return err
		})
	fs.BoolVarP(&f.initial, "initial", "i", false, "also print what the first list shows")
	fs.StringVar(&f.history, "history", "", "keep the events, and each change of the health, in this `DIR`; the page and "+
		"--since then go back to before the start")
	fs.IntVar(&f.size, "history-size", defaultHistorySize, "the most that the history takes, in `MIB`")

	fs.StringSliceVar(&f.listen, "listen", nil, "serve a page of the node at /, and /metrics and /healthz, on "+
		"`ADDRESS`: host:port, a port alone, which is on 127.0.0.1, or unix:///path; may be repeated. The page is shown to "+
		"this machine only")
	fs.BoolVar(&f.pprof, "pprof", false, "serve /debug/pprof/ as well, to this machine only")
	fs.StringVar(&f.nodeName, "node-name", "", "the node's `NAME`, if it is not the host's")
	fs.VarP(&f.exits, "exit-events", "", "the directory of CRI-O's exit files; off: exits come from CRI alone, and later")

	fs.Var(&f.logFormat, "log-format", "the form of the log, on stderr")
	fs.IntVarP(&f.verbosity, "verbosity", "v", 0, "log more: -v=2 or -v=4")
	fs.Lookup("verbosity").NoOptDefVal = "2"
	fs.BoolVar(&f.check, "check", false, "say in a line whether the node is healthy, and end: with exit code 0 if it is, "+
		"1 if not, 2 if that is not known. With --listen, the agent at that address is asked, else the runtime; for 4s "+
		"at most, or --for")
	fs.BoolVar(&f.version, "version", false, "print the version, and end")
	fs.StringSliceVar(&f.listen, "metrics-address", nil, "")
	_ = fs.MarkDeprecated("metrics-address", "it is called --listen") // the flag exists, so this cannot fail
	return fs
}

// addSelection adds the flags that select what is printed of a node or of a history.
func addSelection(fs *pflag.FlagSet, f *flags) {
	fs.FuncP("namespace", "n", "print only events of pods in this `NAMESPACE`; may be repeated, or have several, "+
		"with commas", func(s string) error { return addEach(&f.filter.namespaces, s, parseNamespace) })
	fs.FuncP("pod", "p", "print only events of this `POD`, as name or namespace/name; may be repeated",
		func(s string) error { return addEach(&f.filter.pods, s, parsePodName) })
	fs.FuncP("event", "e", "print only this `EVENT`: Started, Died, Ended, Removed or PodSync; may be repeated. "+
		"Ended is the end of a container, once and with the final reason; Died comes at once, for sandboxes too",
		func(s string) error { return addEach(&f.filter.events, s, parseEvent) })
	fs.FuncP("since", "s", "print what started or ended since this `TIME`, as in RFC 3339, or within this time, "+
		"such as 10m", f.since.set)
	fs.VarP(&f.output, "output", "o", "a table, a JSON object a line, or no events")
}

// findEndpoint takes the endpoint from crictl's environment variable or configuration. If crictl
// has no endpoint, findEndpoint takes the simulated node.
func (f *flags) findEndpoint() error {
	const variable = "CONTAINER_RUNTIME_ENDPOINT"
	if f.endpoint = os.Getenv(variable); f.endpoint != "" {
		f.namedBy = variable
		return nil
	}
	path := os.Getenv("CRI_CONFIG_FILE")
	if path == "" {
		path = "/etc/crictl.yaml"
	}
	file, err := os.Open(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("looking for the runtime's socket: %w", err)
	}
	if err == nil {
		defer file.Close()
		if f.endpoint, err = crictlEndpoint(file); err != nil {
			return fmt.Errorf("looking for the runtime's socket in %s: %w (--runtime-endpoint names it)", path, err)
		}
		f.namedBy = path
	}
	if f.endpoint == "" {
		f.endpoint, f.namedBy = demoEndpoint, ""
	}
	return nil
}

// maxConfigBytes limits how much of a crictl configuration is read.
const maxConfigBytes = 1 << 20

// crictlEndpoint returns the endpoint in a crictl configuration, or "" if the file names no
// endpoint.
func crictlEndpoint(file io.Reader) (string, error) {
	var config struct {
		Endpoint string `yaml:"runtime-endpoint"`
	}
	err := yaml.NewDecoder(io.LimitReader(file, maxConfigBytes)).Decode(&config)
	if errors.Is(err, io.EOF) { // the file is empty
		err = nil
	}
	return config.Endpoint, err
}

// explain adds the variable or file that named the endpoint to a runtime's error.
func (f *flags) explain(err error) error {
	if f.namedBy == "" {
		return err
	}
	return fmt.Errorf("%w (%s names the socket)", err, f.namedBy)
}

// validate reports arguments and values that are wrong, and flags that do not work together.
func (f *flags) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case f.duration < 0:
		return fmt.Errorf("--for %v is negative", f.duration)
	case f.verbosity < 0:
		return fmt.Errorf("--verbosity %d is negative", f.verbosity)
	case f.check && f.wait:
		return errors.New("--check does not wait for a runtime")
	case f.check && len(f.listen) > 1:
		return errors.New("--check asks one agent")
	case f.check && len(f.listen) == 0 && f.endpoint == demoEndpoint:
		return errors.New("--check asks an agent, named with --listen, or a runtime, named with --runtime-endpoint")
	case f.wait && f.endpoint == autoEndpoint:
		return errors.New(`--wait needs to know what to wait for: name the socket, not "auto"`)
	case f.size < 2:
		return fmt.Errorf("--history-size %d is less than 2", f.size)
	case f.pprof && len(f.listen) == 0:
		return errors.New("--pprof needs --listen")
	}
	return nil
}

// node returns the endpoint to watch. If the flags ask for the simulated node, it starts that node,
// and the function stop ends that node.
func (f *flags) node() (endpoint string, stop func(), err error) {
	switch f.endpoint {
	case demoEndpoint:
		return startNode()
	case autoEndpoint:
		return "", func() {}, nil
	default:
		return f.endpoint, func() {}, nil
	}
}

// exitEvents is the directory of CRI-O's exit files. If it is empty, plegwatch learns of exits from
// CRI alone.
type exitEvents string

// String implements pflag.Value.
func (e *exitEvents) String() string { return string(*e) }

// Type implements pflag.Value.
func (e *exitEvents) Type() string { return "DIR|off" }

// Set implements pflag.Value.
func (e *exitEvents) Set(s string) error {
	switch {
	case s == "off":
		*e = ""
	case filepath.IsAbs(s):
		*e = exitEvents(s)
	default:
		return errors.New(`neither "off" nor the absolute path of a folder`)
	}
	return nil
}

// option returns the option of package cri for this setting.
func (e *exitEvents) option() cri.Option {
	if *e == "" {
		return cri.WithoutExitEvents()
	}
	return cri.WithExitsDir(string(*e))
}

// since is a flag that selects events by the time at which they happened: after a time, or within a
// duration before the start. The zero value selects no event.
type since struct {
	at  time.Time
	ago time.Duration
}

func (s *since) set(text string) (err error) {
	*s = since{}
	if s.at, err = time.Parse(time.RFC3339, text); err == nil {
		return nil
	}
	if s.ago, err = time.ParseDuration(text); err != nil || s.ago <= 0 {
		return errors.New("neither a time, such as 2026-01-02T15:04:05Z, nor a duration, such as 10m")
	}
	return nil
}

// isZero reports whether the flag is not set.
func (s *since) isZero() bool { return *s == since{} }

// wants reports whether the flag selects a change at the time happened. began is when the watch
// began.
func (s *since) wants(happened, began time.Time) bool {
	switch {
	case s.ago > 0:
		return happened.After(began.Add(-s.ago))
	case !s.at.IsZero():
		return !happened.Before(s.at)
	default:
		return false
	}
}
