package main

import (
	"flag"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kubepleg/pleg/cri"
)

func TestUsageNamesEveryFlag(t *testing.T) {
	newFlagSet(&flags{}).VisitAll(func(f *flag.Flag) {
		if !strings.Contains(usage, "\n  --"+f.Name+" ") {
			t.Errorf("the usage does not tell of --%s", f.Name)
		}
	})
}

// Each field of a JSON line has a line in the usage.
func TestUsageDescribesJSON(t *testing.T) {
	of := reflect.TypeFor[line]()
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "" || !strings.Contains(usage, "\n  "+name+" ") {
			t.Errorf("the usage does not describe %q, which is %s", name, of.Field(i).Name)
		}
	}
	for _, e := range shownEvents {
		if !strings.Contains(usage, string(e)) {
			t.Errorf("the usage does not name %s", e)
		}
	}
	for l := range strings.SplitSeq(usage, "\n") {
		if len(l) > 96 {
			t.Errorf("%d columns: %s", len(l), l)
		}
	}
}

// procps has a watch. The program has another name in what it says, and README and make
// build it under that.
func TestNameDoesNotCollide(t *testing.T) {
	if program == "watch" || !strings.HasPrefix(usage, "Usage: "+program+" ") {
		t.Errorf("the program is called %q in\n%.60s", program, usage)
	}
	for _, file := range []string{"README.md", "Makefile"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`go build -o \S*` + program + `"? \./examples/watch`).Match(text) {
			t.Errorf("%s does not say how to build it as %s", file, program)
		}
	}
}

// Exit events are on unless they are switched off.
func TestExitEventsFlag(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want exitEvents
		ok   bool
	}{
		{nil, "/run/crio/exits", true},
		{[]string{"--exit-events", "/srv/exits"}, "/srv/exits", true},
		{[]string{"--exit-events=off"}, "", true},
		{[]string{"--exit-events=on"}, "", false},
	} {
		f, err := parseFlags(tt.args, io.Discard)
		if (err == nil) != tt.ok || f.exits != tt.want {
			t.Errorf("%v: %q, %v", tt.args, f.exits, err)
		}
	}
}

func TestNode(t *testing.T) {
	for _, tt := range []struct{ flag, want string }{
		{"unix:///run/a.sock", "unix:///run/a.sock"},
		{autoEndpoint, ""}, // cri.Connect tries the usual ones
	} {
		endpoint, stop, err := flags{endpoint: tt.flag}.node()
		if err != nil || endpoint != tt.want {
			t.Errorf("%s: endpoint %q, %v; want %q", tt.flag, endpoint, err, tt.want)
			continue
		}
		stop()
	}
	endpoint, stop, err := flags{}.node()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	r, err := cri.Connect(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
