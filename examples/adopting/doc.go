// Package adopting implements interfaces of Falco's container plugin, Tetragon and parca-agent on
// top of the library. Each file implements the interface of one agent. The interfaces are copies of
// the agents' interfaces. They include only the methods for containers, and use only types of the
// library and of Go. docs/ADOPTING.md explains each agent's migration.
//
// Each implementation needs a started generator, the generator's cache, or both.
package adopting
