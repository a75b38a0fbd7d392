// Package proctest is for tests that run programs.
package proctest
