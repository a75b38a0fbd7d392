package scenario

import (
	"os"
	"regexp"
	"testing"
)

func TestCheckComment(t *testing.T) {
	for _, test := range []struct {
		name, script string
		ok           bool
	}{
		{"names a rule", "# Shows this.\n#\n# Rule 9. Absence.\n\nstart\n----\n", true},
		{"names two rules", "# Rules 12 and 13.\n", true},
		{"no comment", "start\n----\n", false},
		{"no rule", "# Shows this.\n\nstart\n----\n", false},
		{"the rule is in a later comment", "# Shows this.\n\nstart\n----\n\n# Rule 9.\n", false},
		{"no such rule", "# Rule 38.\n", false},
		{"a rule beyond all numbers", "# Rule 99999999999999999999.\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := checkComment(test.script); (err == nil) != test.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

// docs/INTERNALS.md describes every command of the scripts, and no command that does not exist.
func TestDocumentDescribesEveryCommand(t *testing.T) {
	text, err := os.ReadFile("../../../docs/INTERNALS.md")
	if err != nil {
		t.Fatal(err)
	}
	// The tables of commands have two columns. The first column may contain several commands.
	row := regexp.MustCompile("(?m)^\\| (`.*?`) \\|")
	code := regexp.MustCompile("`(\\w+)[^`]*`")
	tables := regexp.MustCompile(`(?ms)^\| command \|.*?\n\n`)
	documented := make(map[string]bool)
	for _, table := range tables.FindAllString(string(text), -1) {
		for _, first := range row.FindAllStringSubmatch(table, -1) {
			for _, command := range code.FindAllStringSubmatch(first[1], -1) {
				documented[command[1]] = true
			}
		}
	}
	for name := range commands {
		if !documented[name] {
			t.Errorf("docs/INTERNALS.md does not describe %s", name)
		}
	}
	for name := range documented {
		if commands[name] == nil {
			t.Errorf("docs/INTERNALS.md describes %s, which does not exist", name)
		}
	}
}
