package layers

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Files says how the files of a package may use one another. A file may use those
// of its own layer and of lower ones; within a layer, uses form no cycle.
type Files struct {
	// Layer has every file of the package but its tests.
	Layer map[string]int
	// Spread names types whose methods lie in several files of one layer. Such
	// files must use one another's parts of the type, so between files of one
	// layer, uses of the type, its fields and its methods are not counted.
	Spread []string
}

// Problems returns what is wrong with the package in the root of fsys, a sentence
// each, in an order that does not change.
func (f Files) Problems(fsys fs.FS) []string {
	pkg, err := load(fsys)
	if err != nil {
		return []string{err.Error()}
	}
	problems := f.missing(pkg)
	problems = append(problems, f.climbs(pkg)...)
	return append(problems, f.cycles(pkg)...)
}

// missing returns the files that only the package or only the table has.
func (f Files) missing(pkg *loaded) []string {
	var problems []string
	for _, file := range pkg.files {
		if _, ok := f.Layer[file]; !ok {
			problems = append(problems, fmt.Sprintf("%s is in no layer: add it to the table", file))
		}
	}
	for _, file := range slices.Sorted(maps.Keys(f.Layer)) {
		if !slices.Contains(pkg.files, file) {
			problems = append(problems, fmt.Sprintf("the table has %s, which does not exist", file))
		}
	}
	return problems
}

// climbs returns the uses of higher layers.
func (f Files) climbs(pkg *loaded) []string {
	var problems []string
	for _, pair := range slices.SortedFunc(maps.Keys(pkg.uses), comparePairs) {
		user, user2 := f.Layer[pair.user]
		used, used2 := f.Layer[pair.used]
		if user2 && used2 && used > user {
			problems = append(problems, fmt.Sprintf("%s (layer %d) uses %s of %s (layer %d)",
				pair.user, user, names(pkg.uses[pair]), pair.used, used))
		}
	}
	return problems
}

// cycles returns cycles of files of one layer. Of cycles that share files, it
// returns enough to see that each of those files is in one.
func (f Files) cycles(pkg *loaded) []string {
	graph := make(map[string][]string)
	for _, pair := range slices.SortedFunc(maps.Keys(pkg.uses), comparePairs) {
		user, user2 := f.Layer[pair.user]
		used, used2 := f.Layer[pair.used]
		if user2 && used2 && used == user && len(f.counted(pkg.uses[pair])) > 0 {
			graph[pair.user] = append(graph[pair.user], pair.used)
		}
	}
	var problems []string
	reported := make(map[string]bool)
	for _, file := range pkg.files {
		cycle := shortestCycle(graph, file)
		if cycle == nil || reported[file] {
			continue
		}
		text := fmt.Sprintf("a cycle in layer %d: %s", f.Layer[file], file)
		for i, user := range cycle {
			used := cycle[(i+1)%len(cycle)]
			text += fmt.Sprintf(" uses %s of %s", names(f.counted(pkg.uses[filePair{user, used}])), used)
			if i < len(cycle)-1 {
				text += ", which"
			}
			reported[user] = true
		}
		problems = append(problems, text)
	}
	return problems
}

// counted returns the uses that count within a layer: all but those of spread
// types.
func (f Files) counted(uses []use) []use {
	return slices.DeleteFunc(slices.Clone(uses), func(u use) bool { return slices.Contains(f.Spread, u.owner) })
}

// shortestCycle returns the shortest way from start back to start, without its
// end; nil if there is none.
func shortestCycle(graph map[string][]string, start string) []string {
	ways := [][]string{{start}}
	seen := make(map[string]bool)
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		for _, next := range graph[way[len(way)-1]] {
			if next == start {
				return way
			}
			if !seen[next] {
				seen[next] = true
				ways = append(ways, append(slices.Clone(way), next))
			}
		}
	}
	return nil
}

// names lists what is used, and where the first use of each is; of many, the first.
func names(uses []use) string {
	const most = 3
	text := ""
	for i, u := range uses {
		switch {
		case i == most:
			return fmt.Sprintf("%s and %d more", text, len(uses)-most)
		case i > 0:
			text += ", "
		}
		text += fmt.Sprintf("%s (line %d)", u.name, u.line)
	}
	return text
}
