package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kubepleg/pleg"
)

// output is the form of what is printed: a flag.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

// String is of flag.Value.
func (o *output) String() string { return string(*o) }

// Set is of flag.Value.
func (o *output) Set(s string) error {
	switch v := output(s); v {
	case outputText, outputJSON:
		*o = v
		return nil
	}
	return fmt.Errorf("must be %s or %s", outputText, outputJSON)
}

// printer prints a line at a time.
type printer interface {
	print(l line) error
}

func newPrinter(o output, w io.Writer) printer {
	if o == outputJSON {
		return jsonPrinter{json.NewEncoder(w)}
	}
	return &textPrinter{w: w, colour: isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

type jsonPrinter struct{ enc *json.Encoder }

func (p jsonPrinter) print(l line) error { return p.enc.Encode(l) }

// textPrinter prints a table whose lines fit into 100 columns.
type textPrinter struct {
	w      io.Writer
	colour bool
	headed bool
}

const timeLayout = "15:04:05.000"

// row is a line of the table: time, pod, container, event, state, lag, cause.
const row = "%-12s  %-25s  %-11s  %-7s  %-20s  %6s  %s\n"

// The widths of the columns whose contents may be longer.
const (
	podWidth       = 25
	containerWidth = 11
	stateWidth     = 20
)

func (p *textPrinter) print(l line) error {
	if !p.headed {
		p.headed = true
		if _, err := fmt.Fprintf(p.w, row, "TIME", "POD", "CONTAINER", "EVENT", "STATE", "LAG", "CAUSE"); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(row,
		l.Time.Format(timeLayout),
		shorten(l.Namespace+"/"+l.Pod, podWidth),
		shorten(l.containerText(), containerWidth),
		strings.TrimPrefix(string(l.Event), "Container"),
		shorten(l.stateText(), stateWidth),
		l.lagText(),
		l.Cause)
	if c := l.colourCode(); p.colour && c != "" {
		text = c + strings.TrimSuffix(text, "\n") + "\x1b[0m\n"
	}
	_, err := io.WriteString(p.w, text)
	return err
}

func (l line) containerText() string {
	if l.Sandbox {
		return "sandbox"
	}
	return orDash(l.Container)
}

func (l line) stateText() string {
	switch {
	case l.Error != "":
		return "inspection failed"
	case l.ExitCode != nil:
		return strings.TrimSpace(fmt.Sprintf("%s %d %s", l.State, *l.ExitCode, l.Reason))
	case l.RestartCount > 0:
		return fmt.Sprintf("%s, restart %d", l.State, l.RestartCount)
	case l.IP != "":
		return l.State + " " + l.IP
	default:
		return orDash(l.State)
	}
}

func (l line) lagText() string {
	if l.LagSeconds == nil {
		return "-"
	}
	ms := *l.LagSeconds * 1000
	switch {
	case ms < 99.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	default:
		return fmt.Sprintf("%.1fs", ms/1000)
	}
}

// colourCode begins the colour of a line; empty for none.
func (l line) colourCode() string {
	switch {
	case l.Error != "", l.ExitCode != nil && *l.ExitCode != 0:
		return "\x1b[31m"
	case l.Event == pleg.ContainerStarted:
		return "\x1b[32m"
	case l.Event == pleg.ContainerRemoved:
		return "\x1b[2m"
	default:
		return ""
	}
}

// shorten takes the middle out of what is wider than a column: a pod's name tells
// most at its two ends.
func shorten(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	runes := []rune(s)
	tail := (width - 1) / 2
	head := width - 1 - tail
	return string(runes[:head]) + "…" + string(runes[len(runes)-tail:])
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// roughly rounds a duration for people to read.
func roughly(d time.Duration) time.Duration {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
