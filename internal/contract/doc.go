// Package contract holds the tests of docs/CONTRACT.md, by rule. They drive the public API of the
// library, and nothing else.
package contract
