package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/kubepleg/pleg/cri"
)

// program is what the program is called, in what it says. The folder is called watch, and
// so is what "go install" makes of it, but procps has a watch: README says how to build
// this one under its name.
const program = "plegwatch"

const usage = `Usage: ` + program + ` [flags]

Prints the lifecycle of a node's pods as it happens.

  --runtime-endpoint ENDPOINT  the runtime's socket, as unix:///path or /path, or "auto" for
                               where containerd, CRI-O, cri-dockerd and k3s usually have
                               theirs; without it, a small lively node of the program's own
  --wait                       wait for a runtime that is away, instead of failing; needs an
                               ENDPOINT other than "auto"
  --for DURATION               end after this long, such as 10s, the waiting included;
                               without it, or with 0, at Ctrl-C
  --namespace NAMESPACE        print only events of pods in this namespace
  --pod [NAMESPACE/]POD        print only events of this pod
  --event EVENT                print only events of this type: Started, Died, Removed or
                               PodSync
  --output text|json           a table, or a JSON object a line; text if not given
  --listen ADDRESS             serve a page of the node at /, and /metrics and /healthz, on
                               host:port; a port alone, such as 9100 or :9100, is on
                               127.0.0.1, and the page is shown to this machine only
  --metrics-address ADDRESS    the former name of --listen
  --exit-events DIR|off        the folder of CRI-O's exit files, /run/crio/exits if not
                               given; off: learn of exits from CRI alone, later
  --node-name NAME             the node's name, if it is not the host's: in the page's title
                               and in the metric kubelet_node_name, which rules join with
  --check                      say in a line whether the node is healthy, and end: with exit
                               code 0 if it is, 1 if not, 2 if that is not known. With
                               --listen, the agent that serves that address is asked, else
                               the runtime at --runtime-endpoint; for 4s at most, or --for

--namespace, --pod and --event may be repeated, and take several values, separated by commas.
An event is printed if it fits one value of each that is given.

On a terminal the table is as wide as the terminal. Elsewhere nothing is cut. Control
characters in names are escaped. With --output json, each line is an object with

  time          when the event was read, as in RFC 3339
  namespace     the pod's
  pod           its name
  podUID        its UID
  container     the container's name; missing for a sandbox and for PodSync, unless that
                corrects how the container ended: runtimes learn some reasons late
  containerID   the ID of the container or sandbox; missing where container is for PodSync
  sandbox       true if the event is about the pod's sandbox
  event         ContainerStarted, ContainerDied, ContainerRemoved or PodSync
  state         of a container: created, running, exited or unknown; of a sandbox: ready or
                not ready; missing when it is gone
  ip            the sandbox's
  restartCount  the container's; missing if 0
  exitCode      of a container that has exited
  reason        why it has exited
  error         why the pod could not be inspected
  lagSeconds    how long after the runtime's timestamp the event was read; missing where the
                runtime has no timestamp, and for what happened before the watch began
  cause         why the pod was listed: period, hint (an event of the runtime), exit
                (it told the exit by itself) or demand

What is missing is not known, or does not apply.
`

// autoEndpoint stands for the sockets that runtimes usually have.
const autoEndpoint = "auto"

// flags is what the command line says.
type flags struct {
	endpoint string
	wait     bool
	duration time.Duration // 0 is for ever
	filter   filter
	output   output
	listen   string
	exits    exitEvents
	nodeName string
	check    bool
}

// parseFlags reads the command line. It has told stderr of the error that it
// returns.
func parseFlags(args []string, stderr io.Writer) (flags, error) {
	f := flags{output: outputText, exits: cri.DefaultExitsDir}
	fs := newFlagSet(&f)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	if err := fs.Parse(args); err != nil {
		return flags{}, err
	}
	if err := f.validate(fs.Args()); err != nil {
		fmt.Fprintln(stderr, err)
		fs.Usage()
		return flags{}, err
	}
	return f, nil
}

func newFlagSet(f *flags) *flag.FlagSet {
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.Func("runtime-endpoint", "", func(endpoint string) error {
		if endpoint == "" {
			return errors.New(`it is empty; leave it out for a node of the program's own, or say "auto"`)
		}
		f.endpoint = endpoint
		return nil
	})
	fs.BoolVar(&f.wait, "wait", false, "")
	fs.Func("namespace", "", func(s string) error { return addEach(&f.filter.namespaces, s, parseNamespace) })
	fs.Func("pod", "", func(s string) error { return addEach(&f.filter.pods, s, parsePodName) })
	fs.Func("event", "", func(s string) error { return addEach(&f.filter.events, s, parseEvent) })
	fs.DurationVar(&f.duration, "for", 0, "")
	fs.Var(&f.output, "output", "")
	fs.StringVar(&f.listen, "listen", "", "")
	fs.Var(&f.exits, "exit-events", "")
	fs.StringVar(&f.nodeName, "node-name", "", "")
	fs.BoolVar(&f.check, "check", false, "")
	fs.Func("metrics-address", "", func(address string) error {
		fmt.Fprintln(fs.Output(), "-metrics-address is now called -listen.")
		f.listen = address
		return nil
	})
	return fs
}

// validate says what is wrong that the flags by themselves do not show.
func (f flags) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case f.duration < 0:
		return fmt.Errorf("invalid value \"%v\" for flag -for: it is negative", f.duration)
	case f.check && (f.listen == "") == (f.endpoint == ""):
		return errors.New("-check asks either an agent, named with -listen, or a runtime, named with -runtime-endpoint")
	case f.check && f.wait:
		return errors.New("-check does not wait for a runtime")
	case f.wait && f.endpoint == autoEndpoint:
		return errors.New("-wait needs to know what to wait for: name the socket with -runtime-endpoint, not \"auto\"")
	}
	return nil
}

// exitEvents is the folder of CRI-O's exit files; empty if exits are taken from the CRI alone.
type exitEvents string

func (e *exitEvents) String() string { return string(*e) }

// Set sets the folder.
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

// option returns the option of the runtime.
func (e *exitEvents) option() cri.Option {
	if *e == "" {
		return cri.WithoutExitEvents()
	}
	return cri.WithExitsDir(string(*e))
}

// node returns the endpoint to watch and what ends the node behind it, if it is of
// the program's own.
func (f flags) node() (endpoint string, stop func(), err error) {
	switch f.endpoint {
	case "":
		s, err := startNode()
		if err != nil {
			return "", nil, err
		}
		return s.Endpoint(), s.Stop, nil
	case autoEndpoint:
		return "", func() {}, nil
	default:
		return f.endpoint, func() {}, nil
	}
}
