// Package adopting implements interfaces of three agents on the library, each in a file: what
// Falco's container plugin, Tetragon and parca-agent need from a node's runtime. The interfaces
// here copy those of the agents, with types of the library and of Go, and only their methods for
// containers. docs/ADOPTING.md has the tables.
//
// Each implementation takes a started generator and the generator's cache.
package adopting
