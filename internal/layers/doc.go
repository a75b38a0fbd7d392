// Package layers checks who uses whom: the files of a package, by a table that puts
// each file into a layer, and packages, by the imports that each may have. Tests
// call it, and turn what it returns into failures.
package layers
