// Package contract holds the tests of docs/CONTRACT.md. ruleNN_*_test.go tests rule NN. The tests drive
// the public API of the library, and nothing else.
package contract
