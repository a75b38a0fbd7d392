// Plot reads the output of go test -bench from its standard input and writes what
// it says of the two sides: a table in Markdown to its standard output, and charts
// as SVG into a directory.
//
//	go test -run '^$' -bench . -benchmem -count=6 ./... | go run ./cmd/plot -o ../../docs/bench
//
// Of several runs of a benchmark it takes the best, which is the one that other
// work on the machine disturbed least. The bars of a chart are drawn to a
// logarithmic scale where the sides differ much.
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
