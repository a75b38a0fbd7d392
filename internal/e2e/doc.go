// Package e2e tests the library on a real container runtime. Every test starts a runtime of its
// own, runs pods on it, and disturbs it. Then the test compares the library's reports with its own
// record of the events.
//
// The tests need Linux and root. Package testnode describes the runtimes, and what it builds and
// installs. The flag -runtime or the variable PLEG_RUNTIME chooses a runtime. The variable works
// for every package.
//
//	go test .                                                  all tests, with a short soak
//	go test . -runtime crio -crio FOLDER                       all tests on CRI-O
//	go test -run TestSoak -v -timeout 90m . -soak.lives=10000  the whole soak
//	go test -run TestSoak -v -timeout 30m . -soak.for=10m      ten minutes of the soak
//	go test -run TestStarvedRuntime -v . -starved.stops=15     15 stops of the runtime
//	go run ./cmd/runtimes                                      tests and latency, on every runtime
//	go run ./cmd/latency                                       the time from a death to its event
//	go run ./cmd/idle                                          the CPU time of an idle node
//	go run ./cmd/scale                                         the cost of an agent by the size of its node
package e2e
