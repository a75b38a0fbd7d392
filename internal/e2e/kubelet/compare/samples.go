package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// runInfo is what there is to know of a run.
type runInfo struct {
	Began     string `json:"began"`
	Arguments string `json:"arguments"`
	Kubelets  string `json:"kubelets"` // their versions
	CPUs      int    `json:"cpus"`
	LoadFirst string `json:"loadFirst"` // load average of a minute, when it began
	LoadLast  string `json:"loadLast"`  // and when it ended
}

// String returns a line of the document.
func (i runInfo) String() string {
	return fmt.Sprintf("%s, `%s`, kubelets %s, %d CPUs; load average of a minute %s before and %s after", i.Began,
		strings.TrimSpace("go run . "+i.Arguments), i.Kubelets, i.CPUs, i.LoadFirst, i.LoadLast)
}

// began notes that a run begins.
func (r *results) began(kubelets string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var arguments []string
	flag.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		if strings.ContainsAny(value, " ;") {
			value = strconv.Quote(value)
		}
		if f.Name != "samples" && f.Name != "write" && f.Name != "kubelets" {
			arguments = append(arguments, "-"+f.Name+"="+value)
		}
	})
	r.runs = append(r.runs, runInfo{
		Began: time.Now().UTC().Format("2006-01-02 15:04"), Arguments: strings.Join(arguments, " "),
		Kubelets: kubelets, CPUs: runtime.NumCPU(), LoadFirst: loadAverage(),
	})
}

func loadAverage() string {
	content, _ := os.ReadFile("/proc/loadavg") // elsewhere than on Linux nothing runs anyway
	one, _, _ := strings.Cut(string(content), " ")
	return one
}

// kept are results as they are in a file.
type kept struct {
	Runs     []runInfo     `json:"runs"`
	Outcomes []keptOutcome `json:"outcomes"`
	Remarks  []keptRemark  `json:"remarks"`
}

type keptOutcome struct {
	Kind    kind   `json:"kind"`
	Kubelet string `json:"kubelet"`
	Samples string `json:"milliseconds,omitempty"` // with spaces between, which keeps the file short
	Hits    int    `json:"hits,omitempty"`
	All     int    `json:"all,omitempty"`
}

type keptRemark struct {
	Kubelet   string `json:"kubelet"`
	Scenario  string `json:"scenario"`
	Healthz   string `json:"healthz"`
	Unhealthy string `json:"unhealthy,omitempty"`
}

// readResults returns what is kept in a file: nothing, if there is no file.
func readResults(path string) (*results, error) {
	r := newResults()
	if path == "" {
		return r, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the samples of earlier runs: %w", err)
	}
	var k kept
	if err := json.Unmarshal(content, &k); err != nil {
		return nil, fmt.Errorf("reading the samples of earlier runs, %s: %w", path, err)
	}
	r.runs = k.Runs
	for _, of := range k.Outcomes {
		o := r.outcomeLocked(of.Kubelet, of.Kind)
		o.count = count{of.Hits, of.All}
		for field := range strings.FieldsSeq(of.Samples) {
			ms, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, fmt.Errorf("reading the samples of earlier runs, %s: %w", path, err)
			}
			o.samples = append(o.samples, time.Duration(ms*float64(time.Millisecond)))
		}
	}
	for _, m := range k.Remarks {
		r.remarks[m.Kubelet] = append(r.remarks[m.Kubelet], remark{m.Scenario, m.Healthz, m.Unhealthy})
	}
	return r, nil
}

// keep ends a run and writes all results to a file. A run that has measured nothing is
// forgotten; without a path there is no file.
func (r *results) keep(path string) error {
	rows, columns := r.measured()
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := len(r.runs) - 1; last >= 0 && r.fresh {
		r.runs[last].LoadLast = loadAverage()
	} else if last >= 0 {
		r.runs = r.runs[:last]
	}
	if path == "" {
		return nil
	}
	k := kept{Runs: r.runs}
	for _, row := range rows {
		for _, v := range columns {
			o := r.outcomes[row][v.name]
			if o == nil {
				continue
			}
			var samples []string
			for _, s := range o.samples {
				samples = append(samples, strconv.FormatFloat(float64(s)/float64(time.Millisecond), 'f', 1, 64))
			}
			k.Outcomes = append(k.Outcomes,
				keptOutcome{row, v.name, strings.Join(samples, " "), o.count.hits, o.count.all})
		}
	}
	for _, v := range columns {
		for _, m := range r.remarks[v.name] {
			k.Remarks = append(k.Remarks, keptRemark{v.name, m.scenario, m.healthz, m.unhealthy})
		}
	}
	var content bytes.Buffer
	e := json.NewEncoder(&content)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(k); err != nil {
		return fmt.Errorf("writing the samples: %w", err)
	}
	return os.WriteFile(path, content.Bytes(), 0o644)
}
