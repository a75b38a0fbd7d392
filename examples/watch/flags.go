package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

const usage = `Usage: watch [flags]

Prints the lifecycle of a node's pods as it happens.

  --runtime-endpoint ENDPOINT  the runtime's socket, as unix:///path or /path, or "auto" for
                               where containerd, CRI-O and cri-dockerd usually have theirs;
                               without it, a small lively node of the program's own
  --for DURATION               end after this long, such as 10s; without it, or with 0,
                               at Ctrl-C
  --output text|json           a table, or a JSON object a line; text if not given
  --metrics-address ADDRESS    serve /metrics and /healthz on host:port; a port alone, such
                               as 9100 or :9100, is on 127.0.0.1
`

// autoEndpoint stands for the sockets that runtimes usually have.
const autoEndpoint = "auto"

// flags is what the command line says.
type flags struct {
	endpoint       string
	duration       time.Duration // 0 is for ever
	output         output
	metricsAddress string
}

// parseFlags reads the command line. It has told stderr of the error that it
// returns.
func parseFlags(args []string, stderr io.Writer) (flags, error) {
	f := flags{output: outputText}
	fs := newFlagSet(&f)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage) }
	if err := fs.Parse(args); err != nil {
		return flags{}, err
	}
	if err := f.check(fs.Args()); err != nil {
		fmt.Fprintln(stderr, err)
		fs.Usage()
		return flags{}, err
	}
	return f, nil
}

func newFlagSet(f *flags) *flag.FlagSet {
	fs := flag.NewFlagSet("watch", flag.ContinueOnError)
	fs.Func("runtime-endpoint", "", func(endpoint string) error {
		if endpoint == "" {
			return errors.New(`it is empty; leave it out for a node of the program's own, or say "auto"`)
		}
		f.endpoint = endpoint
		return nil
	})
	fs.DurationVar(&f.duration, "for", 0, "")
	fs.Var(&f.output, "output", "")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "")
	return fs
}

// check says what is wrong that the flags by themselves do not show.
func (f flags) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case f.duration < 0:
		return fmt.Errorf("invalid value \"%v\" for flag -for: it is negative", f.duration)
	}
	return nil
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
