// Package proctest is for tests that run programs: their processes, what they write, addresses for
// them, and a server that they meet.
package proctest
