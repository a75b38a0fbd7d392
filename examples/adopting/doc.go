// Package adopting implements interfaces of three agents on the library, each in a file: what
// Falco's container plugin, Tetragon and parca-agent ask of a node's runtime. The interfaces are
// written down here as those agents have them, in the library's and Go's own types, and with
// what they do with containers alone. docs/ADOPTING.md has the tables.
//
// Each begins with a generator that is started, and the cache that it writes.
package adopting
