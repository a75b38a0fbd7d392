// Package proctest helps tests that run programs: it starts and ends processes, keeps their output,
// finds free addresses, and starts servers for the programs.
package proctest
