package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkIdleRelist/pods=110/list=same/impl=kubelet-2  	 9 	 40000 ns/op	 2688 B/op	 112 allocs/op
BenchmarkIdleRelist/pods=110/list=same/impl=kubelet-2  	 9 	 20000 ns/op	 2688 B/op	 112 allocs/op
BenchmarkIdleRelist/pods=110/list=same/impl=kubelet-2  	 9 	 25000 ns/op	 2688 B/op	 112 allocs/op
BenchmarkIdleRelist/pods=110/list=same/impl=pleg-2     	 9 	  2500 ns/op	    0 B/op	   0 allocs/op
BenchmarkStuckPod/impl=kubelet-2 	 1	5502656604 ns/op	 0 current	 37.00 delivered	 250624 B/op	 3867 allocs/op
BenchmarkStuckPod/impl=pleg-2    	 1	5501609785 ns/op	 49.00 current	 49.00 delivered	 439208 B/op	 4501 allocs/op
BenchmarkOnlyHere-2 	 1	 5 ns/op
PASS
`

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := writeTable(&b, parsed(t)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| IdleRelist/pods=110/list=same | **8.0 ×** | 20 µs | 2.5 µs | 112 | 0 |\n",
		"| StuckPod, delivered |  | 37 | 49 | | |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table has no line %q:\n%s", want, b.String())
		}
	}
}

func TestCharts(t *testing.T) {
	drawn := 0
	for _, c := range charts {
		svg := c.draw(parsed(t))
		if svg == "" {
			continue
		}
		drawn++
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is not XML: %v", c.file, err)
			}
		}
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Contains(svg, `width="-`) {
			t.Errorf("%s has an invalid length:\n%s", c.file, svg)
		}
	}
	if drawn != 2 {
		t.Errorf("%d charts were drawn, want 2", drawn)
	}
}

func parsed(t *testing.T) *results {
	t.Helper()
	r, err := parse(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The table and the charts of docs/BENCHMARKS.md match the runs in docs/bench/results.txt.
func TestDocument(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "..", "docs")
	read := func(elements ...string) string {
		content, err := os.ReadFile(filepath.Join(append([]string{docs}, elements...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	results, err := parse(strings.NewReader(read("bench", "results.txt")))
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := writeTable(&table, results); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(read("BENCHMARKS.md"), table.String()) {
		t.Errorf("the table in docs/BENCHMARKS.md does not match the results:\n%s", table.String())
	}
	for _, c := range charts {
		if read("bench", c.file) != c.draw(results) {
			t.Errorf("docs/bench/%s is not drawn from the results", c.file)
		}
	}
}
