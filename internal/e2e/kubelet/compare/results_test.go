package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func fill(r *results, variant string, k kind, samples ...time.Duration) {
	for _, s := range samples {
		r.add(mustVariant(variant), k, s)
	}
}

func mustVariant(name string) variant {
	v, err := variantOf(name)
	if err != nil {
		panic(err)
	}
	return v
}

// TestCheck shows what every limit refuses, and that it refuses nothing else.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		fill func(r *results)
		want string // in the error; empty for none
	}{
		{"nothing was measured", func(*results) {}, ""},
		{"a fifth of stock", func(r *results) {
			fill(r, "stock", crashed, 500*ms)
			fill(r, "ours", crashed, 100*ms)
		}, ""},
		{"more than a fifth of stock", func(r *results) {
			fill(r, "stock", crashed, 500*ms)
			fill(r, "ours", crashed, 101*ms)
		}, "p50 is 101 ms, more than 100 ms"},
		{"p90 of EventedPLEG without exit events", func(r *results) {
			fill(r, "stock, EventedPLEG", crashed, 100*ms, 100*ms, 100*ms)
			fill(r, hintsOnly, crashed, 50*ms, 50*ms, 111*ms)
		}, "p90 is 111 ms, more than 110 ms"},
		{"0.6 of EventedPLEG", func(r *results) {
			fill(r, "stock, EventedPLEG", crashed, 50*ms)
			fill(r, "ours", crashed, 30*ms)
		}, ""},
		{"more than 0.6 of EventedPLEG", func(r *results) {
			fill(r, "stock, EventedPLEG", crashed, 50*ms)
			fill(r, "ours", crashed, 31*ms)
		}, "p50 is 31 ms, more than 30 ms"},
		{"a successor beside a container that lives", func(r *results) {
			r.hit(mustVariant("ours"), alone)
			r.miss(mustVariant("ours"), alone)
		}, "1 of 2"},
		{"idle CPU time", func(r *results) {
			fill(r, "stock", idleKind(100, bothPrograms), 50*ms)
			fill(r, "ours", idleKind(100, bothPrograms), 53*ms)
		}, "idle with 100 pods"},
		{"a crash beside a pod that hangs", func(r *results) {
			fill(r, "ours, no events", crashedBesideHung, 100*ms, 2100*ms)
		}, "one took 2.1 s, more than 2.0 s"},
		{"what stock takes is its own", func(r *results) { fill(r, "stock", crashedBesideHung, time.Hour) }, ""},
		{"pods that do not agree", func(r *results) {
			r.hit(mustVariant("ours"), agreed)
			r.miss(mustVariant("ours"), agreed)
		}, "1 of 2"},
		{"a pod that hung and comes back", func(r *results) {
			fill(r, "ours", releasedSuccessor, 10*time.Second)
			fill(r, "stock", releasedSuccessor, time.Minute)
		}, ""},
		{"a pod that hung and comes back late", func(r *results) {
			fill(r, hintsOnly, releasedSuccessor, 10*time.Second, 10100*ms)
		}, "one took 10.1 s, more than 10.0 s"},
		{"an init container that fails", func(r *results) {
			r.hit(mustVariant("ours"), initFailed)
			r.miss(mustVariant("ours"), initFailed)
		}, "1 of 2"},
		{"an init container that runc ends", func(r *results) { r.miss(mustVariant("ours"), initOfRunc) }, ""},
		{"containers restarted by a switch", func(r *results) { r.miss(mustVariant("ours"), untouched) }, "0 of 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newResults()
			c.fill(r)
			err := r.check(2 * time.Second)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, wanted is %q", err, c.want)
			}
		})
	}
}

// some returns results of every sort.
func some() *results {
	r := newResults()
	r.began("v1.37.1")
	fill(r, "ours", idleKind(100, "kubelet"), 20*ms)
	fill(r, "ours", idleKind(30, bothPrograms), 15*ms)
	fill(r, "ours", idleKind(30, "containerd"), 5*ms)
	fill(r, "ours", idleKind(30, "kubelet"), 10*ms)
	fill(r, "ours", crashed, 60*ms, 70*ms, 90*ms)
	fill(r, "stock", crashed, 3*time.Second)
	fill(r, "stock", agreed, 12*time.Second, 13*time.Second)
	r.hit(mustVariant("stock"), agreed)
	r.miss(mustVariant("stock"), agreed)
	r.remark(mustVariant("stock"), "one pod hangs", "ok", "")
	r.remark(mustVariant("stock"), "one pod hangs", "ok", "PLEG is not healthy: seen <long> ago")
	return r
}

const someTable = `| p50 / p90 (n) | stock | ours |
|---|---|---|
| container killed → successor created | 3.0 s (1) | 70 ms / 90 ms (3) |
| ` + string(agreed) + ` | 12.0 s / 13.0 s (2), 1 of 2 | – |
| idle with 30 pods: CPU of kubelet, of each second | – | 10 ms (1) |
| idle with 30 pods: CPU of containerd, of each second | – | 5 ms (1) |
| idle with 30 pods: CPU of kubelet and containerd together, of each second | – | 15 ms (1) |
| idle with 100 pods: CPU of kubelet, of each second | – | 20 ms (1) |
`

func TestTable(t *testing.T) {
	r := some()
	if got := r.table(); got != someTable {
		t.Errorf("the table is\n%s\nwanted is\n%s", got, someTable)
	}
	want := "- stock, one pod hangs: `/healthz` says `ok`; the log says `PLEG is not healthy: seen <long> ago`\n"
	if got := r.words(); got != want {
		t.Errorf("the words are\n%s\nwanted are\n%s", got, want)
	}
}

// TestKept shows that results are the same when they were written and read.
func TestKept(t *testing.T) {
	r := newResults()
	r.began("v1.37.1")
	if err := r.keep(""); err != nil || len(r.runs) != 0 {
		t.Errorf("a run without samples is kept as %v, %v", r.runs, err)
	}
	r = some()
	path := filepath.Join(t.TempDir(), "samples.json")
	if err := r.keep(path); err != nil {
		t.Fatal(err)
	}
	again, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.table()+again.journal(), r.table()+r.journal(); got != want {
		t.Errorf("read again they are\n%s\nthey were\n%s", got, want)
	}
	if none, err := readResults(filepath.Join(t.TempDir(), "none.json")); err != nil || len(none.outcomes) != 0 {
		t.Errorf("without a file there is %v, %v", none.outcomes, err)
	}
}

// TestPlot shows that the picture has every sample, in the order of the samples.
func TestPlot(t *testing.T) {
	var places []string
	d := xml.NewDecoder(strings.NewReader(some().plot()))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			x := slices.IndexFunc(e.Attr, func(a xml.Attr) bool { return a.Name.Local == "cx" })
			places = append(places, e.Attr[x].Value)
		}
	}
	if len(places) != 10 {
		t.Errorf("there are dots at %v, for 10 samples", places)
	}
	for _, pair := range [][2]time.Duration{{0, axis[0]}, {axis[1], time.Hour}} {
		if place(pair[0]) != place(pair[1]) {
			t.Errorf("%v and %v are not both at an end of the axis", pair[0], pair[1])
		}
	}
	if place(10*ms) != plotLeft || place(50*ms) >= place(60*ms) {
		t.Errorf("the axis has 10 ms at %f, 50 ms at %f, 60 ms at %f", place(10*ms), place(50*ms), place(60*ms))
	}
}

// TestDocument shows that the document, its journal and its plot are what the samples say.
func TestDocument(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "..", "docs")
	r, err := readResults(filepath.Join(docs, "bench", "kubelet.json"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := r.files(filepath.Join(docs, "KUBELET.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if content, err := os.ReadFile(name); err != nil || string(content) != want {
			t.Errorf("%s is not what docs/bench/kubelet.json says (%v): run the command in docs/KUBELET.md", name, err)
		}
	}
	if len(files) != 3 {
		t.Errorf("the results are in %d files", len(files))
	}
}

// TestSaidAt shows how a line of a kubelet's log is found, and its time.
func TestSaidAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.log")
	k := &kubelet{log: path, started: time.Date(2026, 2, 3, 0, 0, 0, 0, time.Local)}
	lines := "a line of another form about b\n" +
		`I0203 04:05:06.000007      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of a"` + "\n" +
		`I0203 04:05:06.000008      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of b"` + "\n" +
		`I0203 04:05:06.000009      12 kubelet.go:1] "SyncLoop (PLEG): event" event="ContainerDied of b"` + "\n"
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	want := time.Date(2026, 2, 3, 4, 5, 6, 8000, time.Local)
	if at, found := k.saidAt("SyncLoop", "of b"); !found || !at.Equal(want) {
		t.Errorf("it was said %t, at %v", found, at)
	}
	if _, found := k.saidAt("SyncLoop", "of c"); found {
		t.Error("what was not said is found")
	}
}

// TestWords shows what is read from a kubelet's log.
func TestWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.log")
	k := &kubelet{log: path}
	for _, c := range []struct {
		line      string
		unhealthy string
		backedOff bool
	}{
		{line: `I1121 22:00:00.000000 1 kubelet.go:1] "Starting"`},
		{line: `E1121 22:00:00.000000 1 kubelet.go:1] "Skipping pod synchronization" ` +
			`err="[container runtime is down, PLEG is not healthy: pleg has yet to be successful]"`},
		{line: `E1121 22:00:00.000000 1 kubelet.go:1] "Skipping pod synchronization" err="container runtime is down"`},
		{line: `E1121 22:00:00.000000 1 kubelet.go:1] "Skipping pod synchronization" ` +
			`err="PLEG is not healthy: a call of \"x\" hangs"`, unhealthy: `PLEG is not healthy: a call of "x" hangs`},
		{line: `E1121 22:00:00.000000 1 pod_workers.go:1] "Error syncing pod, skipping" err="failed to \"StartContainer\" ` +
			`for \"app\" with CrashLoopBackOff: \"back-off 10s restarting failed container=app\""`, backedOff: true},
	} {
		if err := os.WriteFile(path, []byte(c.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := k.unhealthy(); got != c.unhealthy {
			t.Errorf("of %s it reads %q", c.line, got)
		}
		if err := k.backedOff(); (err != nil) != c.backedOff {
			t.Errorf("of %s it reads %v", c.line, err)
		}
	}
}
