package scenario

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"
)

// commands is the language of the scripts: what each command does, and returns as
// its output.
var commands = map[string]func(*scenario, command) string{
	"node": node,

	// What the runtime has.
	"pod": setPod, "set": setContainers, "sandbox": setSandboxes, "exit": exitContainer, "remove": remove, "ips": setIPs,

	// What the runtime does wrong, and what it announces.
	"fail": fail, "stuck": stuck, "delay": delay, "heal": heal, "garbage": answerGarbage,
	"emit": emit, "stream": stream,

	// The generator and time.
	"start": start, "stop": stop, "relist": relist, "request": request, "reinspect": reinspect,
	"advance": advance, "jump": jump,

	// The users of the generator.
	"subscribe": subscribe, "unsubscribe": unsubscribe, "block": block, "cancel": cancel,

	// What is printed.
	"events": printEvents, "read": read, "readers": printReaders, "status": printStatus,
	"health": printHealth, "report": printReport, "metrics": printMetrics, "calls": printCalls,
}

// command is one command with its arguments.
type command struct {
	t    *testing.T
	pos  string
	name string
	args []datadriven.CmdArg
}

func (c command) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf(c.pos+": "+c.name+": "+format, args...)
}

func (c command) has(key string) bool {
	for _, a := range c.args {
		if a.Key == key {
			return true
		}
	}
	return false
}

// first returns the first argument, which has no value.
func (c command) first() string {
	if len(c.args) == 0 {
		c.fatalf("an argument is missing")
	}
	return c.args[0].Key
}

// str returns the value of an argument, "" if it is missing. A value in
// parentheses may contain spaces.
func (c command) str(key string) string {
	for _, a := range c.args {
		if a.Key == key {
			return strings.Join(a.Vals, ", ")
		}
	}
	return ""
}

// uid returns the UID in the argument "pod"; pod="" is the empty UID.
func (c command) uid() types.UID {
	if uid := c.str("pod"); uid != `""` {
		return types.UID(uid)
	}
	return ""
}

// duration returns the value of an argument, 0 if it is missing.
func (c command) duration(key string) time.Duration {
	if !c.has(key) {
		return 0
	}
	return c.parseDuration(c.str(key))
}

func (c command) parseDuration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		c.fatalf("%v", err)
	}
	return d
}

// number returns the value of an argument, otherwise if it is missing.
func (c command) number(key string, otherwise int) int {
	if !c.has(key) {
		return otherwise
	}
	n, err := strconv.Atoi(c.str(key))
	if err != nil {
		c.fatalf("%v", err)
	}
	return n
}
