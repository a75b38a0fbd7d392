package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart shows some benchmarks. For each benchmark, there is a bar for the kubelet and a bar for the
// library.
type chart struct {
	file, title string
	// benchmarks are prefixes of benchmark names. A benchmark with such a prefix is in the chart.
	benchmarks []string
	// units are the units that are drawn. Each unit has its own rows.
	units []string
	// linear is true if the scale is linear. Then readers can compare the lengths of bars.
	linear bool
}

var charts = []chart{
	{file: "idle-relist.svg", title: "Idle relist: time, logarithmic; shorter is better",
		benchmarks: []string{"IdleRelist/"}, units: []string{"ns/op"}},
	{file: "changes.svg", title: "Relists with changes: time, logarithmic; shorter is better",
		benchmarks: []string{"EverythingChanged/", "ChangedPods", "FirstRelist"}, units: []string{"ns/op"}},
	{file: "stuck-pod.svg", title: "One pod of 50 hangs: pods with events within 5 s, of 49; longer is better",
		benchmarks: []string{"StuckPod"}, units: []string{"delivered", "current"}, linear: true},
	{file: "cache.svg", title: "Cache: time, logarithmic; shorter is better",
		benchmarks: []string{"GetNewerThan/", "BlockedReader", "CacheUnderReaders/"}, units: []string{"ns/op"}},
	{file: "cri.svg", title: "Idle relist over CRI: CPU time of the process; shorter is better",
		benchmarks: []string{"CRIIdleRelist/"}, units: []string{"cpu-ns/op"}, linear: true},
}

// These are the dimensions of a chart, in pixels.
const (
	width     = 820
	labelEnd  = 290 // where the labels end and the bars begin
	barsEnd   = 700 // where the longest bar ends
	top       = 56
	barHeight = 13
	rowHeight = 42
)

// row is a benchmark in a chart.
type row struct {
	label, unit   string
	kubelet, here float64
}

// draw returns the chart as SVG, or "" if there are no figures for it. The colours are readable on
// white and on black.
func (c chart) draw(r *results) string {
	rows := c.rows(r)
	if len(rows) == 0 {
		return ""
	}
	scale := c.scale(rows)
	height := top + rowHeight*len(rows) + 8
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12" fill="#768390">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<text x="8" y="20" font-size="14" font-weight="bold">%s</text>`+"\n", html.EscapeString(c.title))
	legend(&b, labelEnd, colourOfKubelet, "kubelet v1.37.1")
	legend(&b, labelEnd+140, colourOfHere, "pleg")
	for i, row := range rows {
		y := top + rowHeight*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelEnd-8, y+barHeight+5,
			html.EscapeString(row.label))
		bar(&b, y, colourOfKubelet, scale(row.kubelet), figure(row.kubelet, row.unit))
		bar(&b, y+barHeight+2, colourOfHere, scale(row.here), figure(row.here, row.unit))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

const (
	colourOfKubelet = "#9aa4b2"
	colourOfHere    = "#326ce5"
)

func legend(b *strings.Builder, x int, colour, name string) {
	fmt.Fprintf(b, `<rect x="%d" y="32" width="12" height="12" fill="%s"/><text x="%d" y="42">%s</text>`+"\n", x, colour,
		x+18, name)
}

func bar(b *strings.Builder, y int, colour string, length float64, label string) {
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, labelEnd, y, length, barHeight,
		colour)
	fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="11">%s</text>`+"\n", labelEnd+length+6, y+barHeight-2,
		html.EscapeString(label))
}

func (c chart) rows(r *results) []row {
	var rows []row
	for _, name := range r.names {
		if !c.has(name) {
			continue
		}
		for _, unit := range c.units {
			k, hasKubelet := r.best(name, kubelet, unit)
			h, hasHere := r.best(name, here, unit)
			if !hasKubelet || !hasHere {
				continue
			}
			label := name
			if len(c.units) > 1 {
				label += ", " + unit
			}
			rows = append(rows, row{label, unit, k, h})
		}
	}
	return rows
}

func (c chart) has(name string) bool {
	for _, prefix := range c.benchmarks {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// scale returns a function that converts a figure to the length of its bar. A logarithmic scale
// begins below the smallest figure, so that every bar is visible.
func (c chart) scale(rows []row) func(v float64) float64 {
	least, most := math.Inf(1), 0.0
	for _, r := range rows {
		least = min(least, r.kubelet, r.here)
		most = max(most, r.kubelet, r.here)
	}
	if c.linear || least <= 0 {
		return func(v float64) float64 { return (barsEnd - labelEnd) * v / max(most, 1) }
	}
	from := math.Floor(math.Log10(least) - 0.3)
	return func(v float64) float64 {
		return (barsEnd - labelEnd) * (math.Log10(v) - from) / (math.Log10(most) - from)
	}
}
