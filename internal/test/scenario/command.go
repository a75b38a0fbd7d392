package scenario

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"
)

// commands defines the language of the scripts. Each function runs one command and returns its
// output.
var commands = map[string]func(*scenario, command) string{
	"node": node,

	// These commands change what exists in the runtime.
	"pod": setPod, "set": setContainers, "sandbox": setSandboxes, "exit": exitContainer, "remove": remove, "ips": setIPs,

	// These commands inject faults, and send events.
	"fail": fail, "stuck": stuck, "delay": delay, "heal": heal, "garbage": answerGarbage,
	"emit": emit, "stream": stream,

	// These commands control the generator and the time.
	"start": start, "stop": stop, "relist": relist, "request": request, "reinspect": reinspect,
	"advance": advance, "jump": jump,

	// These commands act as users of the generator.
	"subscribe": subscribe, "unsubscribe": unsubscribe, "block": block, "cancel": cancel,

	// These commands print state.
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

// The method first returns the first argument, which must be a key without a value.
func (c command) first() string {
	if len(c.args) == 0 {
		c.fatalf("an argument is missing")
	}
	return c.args[0].Key
}

// str returns the value of an argument; "" if the argument is missing. A value in parentheses may
// contain spaces.
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

// duration returns the value of an argument; 0 if the argument is missing.
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

// number returns the value of an argument, or the parameter otherwise if the argument is missing.
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
