package calls

import "errors"

// PanicError says that the runtime panicked in a call, or ended its goroutine.
type PanicError struct{ text string }

func (e *PanicError) Error() string { return e.text }

// Panicked reports whether an error that came from done says that the runtime
// panicked.
func Panicked(err error) bool {
	var panicked *PanicError
	return errors.As(err, &panicked)
}
