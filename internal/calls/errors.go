package calls

import (
	"errors"
	"fmt"
	"slices"
)

// PanicError says that the runtime panicked in a call, or ended its goroutine.
type PanicError struct{ text string }

func (e *PanicError) Error() string { return e.text }

// Panicked reports whether an error that came from done says that the runtime
// panicked.
func Panicked(err error) bool {
	_, panicked := err.(*PanicError) //nolint:errorlint // done got it as it is, and to unwrap asks the runtime
	return panicked
}

// PanicText says what somebody panicked with, as far as that can be said without another
// panic.
func PanicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T that cannot be printed", value)
		}
	}()
	return fmt.Sprint(value)
}

// runtimeError is an error of the runtime that has been read: to print it asks
// nothing of the runtime.
type runtimeError struct {
	text  string
	cause error   // as the runtime returned it
	known []error // those of the group's known errors that it is
}

func (e *runtimeError) Error() string { return e.text }
func (e *runtimeError) Unwrap() error { return e.cause }

func read(err error, known []error) error {
	e := &runtimeError{text: err.Error(), cause: err}
	for _, k := range known {
		if errors.Is(err, k) {
			e.known = append(e.known, k)
		}
	}
	return e
}

// Is reports whether an error that came from done is a known one, which must be
// among those that the group was made with. It is like [errors.Is], but asks nothing
// of the runtime.
func Is(err, known error) bool {
	if e, ok := err.(*runtimeError); ok { //nolint:errorlint // as in Panicked
		return slices.Contains(e.known, known)
	}
	return err == known //nolint:errorlint // an owner's own error is the known one itself
}
