package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubepleg/pleg/internal/printable"
)

// historyCommand is the first argument of the command that prints a history.
const historyCommand = "history"

// printHistory prints the history that its arguments name, and returns the exit code.
func printHistory(args []string, stdout, stderr io.Writer) int {
	f := flags{output: outputText}
	fs := pflag.NewFlagSet(program+" "+historyCommand, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(stderr)
	fs.Usage = func() {}
	addSelection(fs, &f)
	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(stdout, "Usage: %s %s DIR [flags]\n\nPrints what plegwatch --history has written. Changes of the health "+
			"are printed unless a flag\nselects pods or events.\n\n%s", program, historyCommand, fs.FlagUsagesWrapped(96))
		return exitOK
	}
	if err == nil && fs.NArg() != 1 {
		err = errors.New("one directory is needed")
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s %s: %s\n", program, historyCommand, printable.Text(err.Error()))
		return exitUsage
	}
	p, err := readHistory(fs.Arg(0))
	if err == nil {
		err = p.print(newPrinter(f.output, stdout), &f, time.Now())
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s %s: %s\n", program, historyCommand, printable.Text(err.Error()))
		return exitFailed
	}
	if p.unreadable > 0 {
		fmt.Fprintf(stderr, "%s %s: %d lines are torn, or of another version\n", program, historyCommand, p.unreadable)
	}
	return exitOK
}

// print prints the entries that the flags select. A duration in --since counts back from the time
// now.
func (p *past) print(to printer, f *flags, now time.Time) error {
	isRecent := func(t time.Time) bool { return f.since.isZero() || f.since.wants(t, now) }
	for _, e := range p.entries {
		var err error
		switch {
		case e.health != nil && f.filter.isEmpty() && isRecent(e.health.Time):
			err = to.printHealth(*e.health)
		case e.event != nil && f.filter.wants(e.event, nil) && isRecent(e.event.shownTime()):
			err = to.print(*e.event)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
