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
	"github.com/kubepleg/pleg/plegz"
)

// output is the value of --output.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
	outputNone output = "none"
)

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "text|json|none" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	switch v := output(s); v {
	case outputText, outputJSON, outputNone:
		*o = v
		return nil
	}
	return fmt.Errorf("must be %s, %s or %s", outputText, outputJSON, outputNone)
}

// printer prints one line for each event.
type printer interface {
	print(l line) error
	printHealth(h healthLine) error
}

func newPrinter(o output, w io.Writer) printer {
	switch o {
	case outputNone:
		return noPrinter{}
	case outputJSON:
		return jsonPrinter{w}
	default:
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

type noPrinter struct{}

func (noPrinter) print(line) error { return nil }

func (noPrinter) printHealth(healthLine) error { return nil }

type jsonPrinter struct{ w io.Writer }

func (p jsonPrinter) print(l line) error { return p.write(l) }

func (p jsonPrinter) printHealth(h healthLine) error { return p.write(h) }

func (p jsonPrinter) write(v any) error {
	text, err := jsonLine(v)
	if err != nil {
		return err
	}
	_, err = p.w.Write(text)
	return err
}

// jsonLine returns a line of JSON, in which everything that a terminal could obey is escaped.
func jsonLine(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(printable.JSON(text), '\n'), err
}

// textPrinter prints a table. On a terminal, lines are as wide as the terminal. The last columns
// are dropped if they do not fit, and long names are shortened in the middle. A state is never cut.
// In a file or a pipe, nothing is cut, and times include the date.
type textPrinter struct {
	w       io.Writer
	columns func() int // returns the terminal's current width; nil if w is not a terminal
	colour  bool
	headed  bool
}

const (
	clockLayout = "15:04:05.000"
	dateLayout  = "2006-01-02T15:04:05.000Z07:00"
)

// The widths of the columns. The pod and container columns grow with the terminal, and the state
// column grows with its text.
const (
	podWidth       = 25
	containerWidth = 11
	eventWidth     = 7
	stateWidth     = 20
	lagWidth       = 6
	causeWidth     = 7
	gap            = 2
	// narrowest is the smallest width of the pod and container columns together. On a narrower
	// terminal, lines wrap.
	narrowest = 12
)

// cells contains the texts of one table line, one for each column.
type cells struct{ time, pod, container, event, state, lag, cause string }

func (p *textPrinter) print(l line) error {
	c := cells{p.timeText(l.shownTime()), l.Namespace + "/" + l.Pod, l.containerText(), eventText(l.Event), l.stateText(),
		l.lagText(), string(l.Cause)}
	if l.Initial {
		c.cause = "initial"
	}
	return p.write(c, l.colourCode())
}

// printHealth prints the level as the event, and the sentence as the state.
func (p *textPrinter) printHealth(h healthLine) error {
	colour := ""
	if h.Level == plegz.LevelError {
		colour = red
	}
	return p.write(cells{p.timeText(h.Time), "-", "-", string(h.Level), h.Sentence, "-", "-"}, colour)
}

// write writes a row. Before the first row, it writes the heading.
func (p *textPrinter) write(c cells, colour string) error {
	if !p.headed {
		p.headed = true
		heading := cells{"TIME", "POD", "CONTAINER", "EVENT", "STATE", "LAG", "CAUSE"}
		if _, err := io.WriteString(p.w, p.format(heading)+"\n"); err != nil {
			return err
		}
	}
	text := p.format(c)
	if p.colour && colour != "" {
		text = colour + text + "\x1b[0m"
	}
	_, err := io.WriteString(p.w, text+"\n")
	return err
}

func (p *textPrinter) timeText(t time.Time) string {
	if p.columns != nil {
		return t.Format(clockLayout)
	}
	return t.Format(dateLayout)
}

// format returns a line of the table. It escapes the texts, because they may contain anything.
func (p *textPrinter) format(c cells) string {
	c.pod, c.container, c.state = printable.Text(c.pod), printable.Text(c.container), printable.Text(c.state)
	timeWidth := len(dateLayout)
	pod, container, state, lag, cause := podWidth, containerWidth, stateWidth, true, true
	if p.columns != nil {
		timeWidth = len(clockLayout)
		fixed := timeWidth + gap + gap + gap + eventWidth + gap + stateWidth
		all := fixed + podWidth + containerWidth + gap + lagWidth + gap + causeWidth
		columns := p.columns()
		if columns <= 0 {
			columns = all
		}
		cause = columns >= all
		lag = columns >= all-gap-causeWidth
		if lag {
			fixed += gap + lagWidth
		}
		if cause {
			fixed += gap + causeWidth
		}
		state = max(stateWidth, utf8.RuneCountInString(c.state))
		names := max(columns-fixed-(state-stateWidth), narrowest)
		container = names * containerWidth / (podWidth + containerWidth)
		pod = names - container
		c.pod, c.container = shorten(c.pod, pod), shorten(c.container, container)
	}
	text := fmt.Sprintf("%-*s  %-*s  %-*s  %-*s  %-*s", timeWidth, c.time, pod, c.pod, container, c.container,
		eventWidth, c.event, state, c.state)
	if lag {
		text += fmt.Sprintf("  %*s", lagWidth, c.lag)
	}
	if cause {
		text += "  " + c.cause
	}
	return strings.TrimRight(text, " ")
}

func (l line) containerText() string {
	if l.Sandbox {
		return "sandbox"
	}
	return orDash(l.Container)
}

func (l line) stateText() string {
	switch {
	case l.ExitCode != nil && l.Unconfirmed && l.Event == pleg.ContainerEnded: // the reason is final
		return fmt.Sprintf("%s %d %s unconfirmed", l.State, *l.ExitCode, l.Reason)
	case l.ExitCode != nil && l.Unconfirmed: // an exit event reports no reason
		return fmt.Sprintf("%s %d unconfirmed", l.State, *l.ExitCode)
	case l.ExitCode != nil: // also if a later inspection has failed
		return strings.TrimSpace(fmt.Sprintf("%s %d %s", l.State, *l.ExitCode, l.Reason))
	case l.Error != "":
		return "inspection failed"
	case l.State == string(pleg.ContainerStateExited):
		return l.State + ", code unknown"
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

// red is the escape sequence for lines that report a problem.
const red = "\x1b[31m"

// colourCode is the escape sequence of a line's colour; empty for none.
func (l line) colourCode() string {
	switch {
	case l.Initial, l.Event == pleg.ContainerRemoved:
		return "\x1b[2m"
	case l.Error != "", l.ExitCode != nil && *l.ExitCode != 0:
		return red
	case l.Event == pleg.ContainerStarted:
		return "\x1b[32m"
	default:
		return ""
	}
}

// If a text is wider than its column, shorten cuts out the middle. The start and the end of a pod's
// name identify the pod best.
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

// roughly rounds a duration so that it is easy to read.
func roughly(d time.Duration) time.Duration {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}
