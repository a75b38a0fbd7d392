// Package proctest is for tests that run programs: their processes, what they write, addresses for
// them, and servers that they meet.
package proctest
