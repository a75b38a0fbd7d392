package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// These are the two generators that are compared, as the output names them.
const (
	kubelet = "kubelet"
	here    = "pleg"
)

// results are the figures of the benchmarks of both generators.
type results struct {
	// names are the benchmarks' names, in the order of the output. The part that names the
	// generator is cut out.
	names []string
	runs  map[key][]float64
}

// key identifies a figure of a benchmark by its name, generator and unit.
type key struct{ name, side, unit string }

var (
	procs  = regexp.MustCompile(`-\d+$`)
	sideOf = regexp.MustCompile(`/impl=(\w+)`)
)

// parse reads the output of go test -bench. It skips all lines except benchmarks of a generator.
func parse(r io.Reader) (*results, error) {
	res := &results{runs: make(map[key][]float64)}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if err := res.add(fields); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	return res, lines.Err()
}

func (r *results) add(fields []string) error {
	name := procs.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
	side := sideOf.FindStringSubmatch(name)
	if side == nil {
		return nil
	}
	name = strings.Replace(name, side[0], "", 1)
	if !slices.Contains(r.names, name) {
		r.names = append(r.names, name)
	}
	for i := 2; i+1 < len(fields); i += 2 {
		value, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return err
		}
		k := key{name, side[1], fields[i+1]}
		r.runs[k] = append(r.runs[k], value)
	}
	return nil
}

// best returns the figure of the run that was disturbed least: the lowest time, or the highest
// count. It returns false if there are no runs.
func (r *results) best(name, side, unit string) (float64, bool) {
	values := r.runs[key{name, side, unit}]
	switch {
	case len(values) == 0:
		return 0, false
	case strings.HasSuffix(unit, "/op"):
		return slices.Min(values), true
	default:
		return slices.Max(values), true
	}
}
