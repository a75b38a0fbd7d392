// Plot reads the output of go test -bench from standard input and compares the kubelet with the
// library. It writes a table in Markdown to standard output, and charts as SVG into a directory.
//
//	go test -run '^$' -bench . -benchmem -count=6 ./... | go run ./cmd/plot -o ../../docs/bench
//
// If a benchmark was run several times, Plot uses the best run, because other work on the machine
// disturbed it least. If the figures differ much, the scale of a chart is logarithmic.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("o", "", "the directory to write the charts into; none are written without it")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	results, err := parse(os.Stdin)
	if err != nil {
		return fmt.Errorf("reading benchmarks: %w", err)
	}
	if err := writeTable(os.Stdout, results); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range charts {
		svg := c.draw(results)
		if svg == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}
