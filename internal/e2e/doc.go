// Package e2e tests the library on a real container runtime. Every test starts a runtime of its own, runs
// pods in it, breaks it, and compares what the library reports with the test's own record of what it did.
//
// It needs Linux and root. Package testnode describes the runtimes, and what it builds and
// installs. -runtime names the one to run; the variable PLEG_RUNTIME does so for every package.
//
//	go test .                                                  everything, the soak bounded
//	go test . -runtime crio -crio FOLDER                       the same on CRI-O
//	go test -run TestSoak -v -timeout 90m . -soak.lives=10000  the whole soak
//	go test -run TestSoak -v -timeout 30m . -soak.for=10m      ten minutes of it
//	go test -run TestStarvedRuntime -v . -starved.stops=15     starts while the runtime is stopped, 15 times
//	go run ./cmd/runtimes                                      all of that, and latency, on every runtime
//	go run ./cmd/latency                                       from a death to its event
//	go run ./cmd/idle                                          the CPU time of an idle node
//	go run ./cmd/scale                                         what an agent costs by the size of its node
package e2e
