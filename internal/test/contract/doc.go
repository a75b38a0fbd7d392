// Package contract contains the tests of docs/CONTRACT.md. ruleNN_*_test.go tests rule NN. The
// tests use only the public API of the library.
package contract
