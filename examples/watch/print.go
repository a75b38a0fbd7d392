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
	"github.com/kubepleg/pleg/internal/printable"
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
		return jsonPrinter{w}
	}
	p := &textPrinter{w: w}
	if f, ok := w.(*os.File); ok {
		if _, ok := terminalColumns(f); ok {
			p.columns = func() int { columns, _ := terminalColumns(f); return columns }
			p.colour = os.Getenv("NO_COLOR") == ""
		}
	}
	return p
}

type jsonPrinter struct{ w io.Writer }

func (p jsonPrinter) print(l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = p.w.Write(append(printable.JSON(text), '\n'))
	return err
}

// textPrinter prints a table. On a terminal its lines are as wide as the terminal, and what
// is too long for its column loses its middle. Elsewhere nothing is cut.
type textPrinter struct {
	w       io.Writer
	columns func() int // of the terminal, which may change; nil if w is none
	colour  bool
	headed  bool
}

const timeLayout = "15:04:05.000"

// row is a line of the table: time, pod, container, event, state, lag, cause.
const row = "%-12s  %-*s  %-*s  %-7s  %-*s  %6s  %s\n"

// The widths of the three columns whose contents may be longer, in a table of tableWidth.
// Of the table, rowFixed is for the other columns.
const (
	podWidth       = 25
	containerWidth = 11
	stateWidth     = 20
	rowFixed       = 43
	tableWidth     = rowFixed + podWidth + containerWidth + stateWidth
	// narrowest is the least that the three columns have together. Below it lines wrap.
	narrowest = 12
)

// widths are those of the columns whose contents may be longer.
type widths struct {
	pod, container, state int
	cut                   bool // what is longer is cut, and does not push the rest aside
}

// widths returns the widths of the columns in the terminal as it is now.
func (p *textPrinter) widths() widths {
	if p.columns == nil {
		return widths{pod: podWidth, container: containerWidth, state: stateWidth}
	}
	columns := p.columns()
	if columns <= 0 {
		columns = tableWidth
	}
	all := max(columns-rowFixed, narrowest)
	w := widths{cut: true}
	w.pod = all * podWidth / (tableWidth - rowFixed)
	w.container = all * containerWidth / (tableWidth - rowFixed)
	w.state = all - w.pod - w.container
	return w
}

// format returns a line of the table. The texts of the three columns may hold anything.
func (w widths) format(time, pod, container, event, state, lag, cause string) string {
	cell := func(s string, width int) string {
		s = printable.Text(s)
		if w.cut {
			s = shorten(s, width)
		}
		return s
	}
	return fmt.Sprintf(row, time, w.pod, cell(pod, w.pod), w.container, cell(container, w.container), event,
		w.state, cell(state, w.state), lag, cause)
}

func (p *textPrinter) print(l line) error {
	w := p.widths()
	if !p.headed {
		p.headed = true
		heading := w.format("TIME", "POD", "CONTAINER", "EVENT", "STATE", "LAG", "CAUSE")
		if _, err := io.WriteString(p.w, heading); err != nil {
			return err
		}
	}
	text := w.format(l.Time.Format(timeLayout), l.Namespace+"/"+l.Pod, l.containerText(), eventText(l.Event),
		l.stateText(), l.lagText(), string(l.Cause))
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

// roughly rounds a duration for people to read.
func roughly(d time.Duration) time.Duration {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
