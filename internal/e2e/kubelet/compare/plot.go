package main

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"
)

// The plot has a lane for each kubelet of each kind, a dot for each sample, and a line at the
// median, over a logarithmic axis.
const (
	plotWidth  = 960
	plotLeft   = 170 // of the axis
	plotRight  = 930
	plotTop    = 60
	laneHeight = 15
	headHeight = 26
)

// axis are the ends of the time axis.
var axis = [2]time.Duration{10 * time.Millisecond, 400 * time.Second}

// colors of the kubelets, in the order of variants; they differ in lightness too.
var colors = []string{"#444444", "#D55E00", "#B8860B", "#0072B2", "#56B4E9"}

func place(d time.Duration) float64 {
	low, high := math.Log(float64(axis[0])), math.Log(float64(axis[1]))
	x := math.Log(float64(min(max(d, axis[0]), axis[1])))
	return plotLeft + (plotRight-plotLeft)*(x-low)/(high-low)
}

// plot returns the samples of the table as a picture, in SVG.
func (r *results) plot() string {
	rows, _ := r.measured()
	var b strings.Builder
	y := plotTop
	for _, k := range rows {
		y = r.plotKind(&b, k, y)
	}
	var frame strings.Builder
	fmt.Fprintf(&frame, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="11">`+"\n", plotWidth, y+20)
	frame.WriteString("<title>Kubelets beside each other: every sample, and the medians</title>\n")
	fmt.Fprintf(&frame, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, y+20)
	fmt.Fprintf(&frame, `<text x="%d" y="20" font-size="13">Every sample (dots) and the medians (lines); `+
		`time on a logarithmic axis</text>`+"\n", 10)
	for _, tick := range []struct {
		at   time.Duration
		text string
	}{
		{10 * time.Millisecond, "10 ms"}, {100 * time.Millisecond, "100 ms"}, {time.Second, "1 s"},
		{10 * time.Second, "10 s"}, {100 * time.Second, "100 s"},
	} {
		x := place(tick.at)
		fmt.Fprintf(&frame, `<path d="M%.1f %dV%d" stroke="#dddddd"/>`+"\n", x, plotTop-12, y)
		fmt.Fprintf(&frame, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555555">%s</text>`+"\n", x, plotTop-16,
			tick.text)
	}
	return frame.String() + b.String() + "</svg>\n"
}

// plotKind draws the lanes of a kind below y, and returns where they end.
func (r *results) plotKind(b *strings.Builder, k kind, y int) int {
	top := y
	for i, v := range variants {
		s := r.get(v.name, k).samples
		if len(s) == 0 {
			continue
		}
		if y == top {
			y += headHeight
			head := html.EscapeString(strings.ReplaceAll(string(k), "`", ""))
			fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y-9, head)
		}
		middle := y + laneHeight/2
		fmt.Fprintf(b, `<g fill="%s"><text x="20" y="%d">%s</text>`+"\n", colors[i], middle+4, html.EscapeString(v.name))
		for _, d := range s {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%d" r="3" fill-opacity="0.45"/>`+"\n", place(d), middle)
		}
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="2" height="%d"/></g>`+"\n", place(s.Quantile(0.5))-1, middle-6, 12)
		y += laneHeight
	}
	return y
}
