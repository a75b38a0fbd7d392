package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/kubepleg/pleg/internal/printable"
)

// logFormat is the value of --log-format.
type logFormat string

const (
	logText logFormat = "text"
	logJSON logFormat = "json"
)

// String implements pflag.Value.
func (l *logFormat) String() string { return string(*l) }

// Type implements pflag.Value.
func (l *logFormat) Type() string { return "text|json" }

// Set implements pflag.Value.
func (l *logFormat) Set(s string) error {
	switch v := logFormat(s); v {
	case logText, logJSON:
		*l = v
		return nil
	}
	return fmt.Errorf("must be %s or %s", logText, logJSON)
}

// newLoggers returns a logger for the program and a logger for the library. They write the same
// format.
func newLoggers(format logFormat, verbosity int, w io.Writer) (*slog.Logger, klog.Logger) {
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity)}
	var handler slog.Handler = slog.NewTextHandler(w, options) // quotes control characters
	if format == logJSON {
		handler = slog.NewJSONHandler(printableJSON{w}, options)
	}
	return slog.New(handler), logr.FromSlogHandler(handler)
}

// printableJSON is a writer for lines of JSON. It escapes characters that control a terminal.
type printableJSON struct{ w io.Writer }

func (p printableJSON) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append(printable.JSON(bytes.TrimSuffix(line, []byte("\n"))), '\n')); err != nil {
		return 0, err
	}
	return len(line), nil
}
