package cri

// SetUsualEndpoints sets where Connect looks for a runtime, and returns what sets
// it back.
func SetUsualEndpoints(endpoints ...string) (restore func()) {
	before := usualEndpoints
	usualEndpoints = endpoints
	return func() { usualEndpoints = before }
}
