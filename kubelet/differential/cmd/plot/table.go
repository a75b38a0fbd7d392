package main

import (
	"fmt"
	"io"
	"strings"
)

// writeTable writes the ratio, times and allocations of both generators.
func writeTable(w io.Writer, r *results) error {
	var b strings.Builder
	b.WriteString("| benchmark | kubelet ÷ pleg | kubelet | pleg | allocations: kubelet | pleg |\n" +
		"|---|---:|---:|---:|---:|---:|\n")
	for _, name := range r.names {
		k, hasKubelet := r.best(name, kubelet, "ns/op")
		h, hasHere := r.best(name, here, "ns/op")
		if !hasKubelet || !hasHere {
			continue
		}
		ka, _ := r.best(name, kubelet, "allocs/op")
		ha, _ := r.best(name, here, "allocs/op")
		fmt.Fprintf(&b, "| %s | **%s** | %s | %s | %.0f | %.0f |\n", name, ratio(k, h), duration(k), duration(h), ka, ha)
		for _, unit := range otherUnits {
			k, hasKubelet := r.best(name, kubelet, unit)
			h, hasHere := r.best(name, here, unit)
			if !hasKubelet || !hasHere {
				continue
			}
			q := ""
			if strings.HasSuffix(unit, "/op") {
				q = "**" + ratio(k, h) + "**"
			}
			fmt.Fprintf(&b, "| %s, %s | %s | %s | %s | | |\n", name, unit, q, figure(k, unit), figure(h, unit))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// otherUnits are units that only some benchmarks report.
var otherUnits = []string{"delivered", "current", "cpu-ns/op"}

func ratio(k, h float64) string {
	switch q := k / h; {
	case q >= 10:
		return fmt.Sprintf("%.0f ×", q)
	case q >= 1:
		return fmt.Sprintf("%.1f ×", q)
	default:
		return fmt.Sprintf("%.2f ×", q)
	}
}

// figure formats a value for readers.
func figure(v float64, unit string) string {
	if strings.HasSuffix(unit, "ns/op") {
		return duration(v)
	}
	return fmt.Sprintf("%.4g", v)
}

func duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return fmt.Sprintf("%.3g s", ns/1e9)
	case ns >= 1e6:
		return fmt.Sprintf("%.3g ms", ns/1e6)
	case ns >= 1e3:
		return fmt.Sprintf("%.3g µs", ns/1e3)
	default:
		return fmt.Sprintf("%.3g ns", ns)
	}
}
