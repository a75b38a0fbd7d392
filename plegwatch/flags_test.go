package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubepleg/pleg/cri"
)

// The usage text describes each field of the JSON output.
func TestUsageDescribesJSON(t *testing.T) {
	of := reflect.TypeFor[line]()
	for i := range of.NumField() {
		if !of.Field(i).IsExported() {
			continue
		}
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "" || !strings.Contains(usage(), "\n  "+name+" ") {
			t.Errorf("the usage does not describe %q, which is %s", name, of.Field(i).Name)
		}
	}
	for _, e := range shownEvents {
		if !strings.Contains(usage(), string(e)) {
			t.Errorf("the usage does not name %s", e)
		}
	}
	for l := range strings.SplitSeq(usage(), "\n") {
		if len(l) > 96 {
			t.Errorf("%d columns: %s", len(l), l)
		}
	}
}

// plegwatch uses exit events by default. --exit-events=off switches them off.
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
		{autoEndpoint, ""}, // with an empty endpoint, cri.Connect tries the usual sockets
	} {
		endpoint, stop, err := (&flags{endpoint: tt.flag}).node()
		if err != nil || endpoint != tt.want {
			t.Errorf("%s: endpoint %q, %v; want %q", tt.flag, endpoint, err, tt.want)
			continue
		}
		stop()
	}
	endpoint, stop, err := (&flags{endpoint: demoEndpoint}).node()
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

// If the command line names no endpoint, plegwatch reads the endpoint from the environment or from
// crictl's configuration.
func TestFindsEndpoint(t *testing.T) {
	config := filepath.Join(t.TempDir(), "crictl.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string, args ...string) {
		t.Helper()
		if f, err := parseFlags(args, io.Discard); err != nil || f.endpoint != want {
			t.Errorf("%v: %q, %v; want %q", args, f.endpoint, err, want)
		}
	}
	t.Setenv("CRI_CONFIG_FILE", config)
	expect(demoEndpoint) // the file does not exist yet
	write("image-endpoint: unix:///run/image.sock\ntimeout: 10\n")
	expect(demoEndpoint)
	for _, value := range []string{"unix:///run/a.sock", `"unix:///run/a.sock"`, "'unix:///run/a.sock' # here"} {
		write("timeout: 10\nruntime-endpoint: " + value + "\ndebug: false\n")
		expect("unix:///run/a.sock")
	}
	write("  \"runtime-endpoint\": unix:///run/a.sock\n  timeout: 2\n")
	expect("unix:///run/a.sock")
	write("# nothing\n")
	expect(demoEndpoint)
	// If a configuration file cannot be parsed, plegwatch reports an error. It does not fall back
	// to the simulated node.
	for _, text := range []string{
		`runtime-endpoint: unix:///run/a.sock\nimage-endpoint: unix:///run/a.sock`, "runtime-endpoint: [a, b]",
		"\truntime-endpoint: a",
		"runtime-endpoint:unix:///run/a.sock", "{",
	} {
		write(text)
		if f, err := parseFlags(nil, io.Discard); err == nil || !strings.Contains(err.Error(), config) {
			t.Errorf("%q: %q, %v", text, f.endpoint, err)
		}
	}
	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "/run/b.sock")
	expect("/run/b.sock")
	expect("/run/c.sock", "-r", "/run/c.sock")

	t.Setenv("CONTAINER_RUNTIME_ENDPOINT", "/no/b.sock")
	var stdout, stderr console
	if code := run(t.Context(), nil, &stdout, &stderr); code != exitFailed ||
		!strings.Contains(stderr.String(), "CONTAINER_RUNTIME_ENDPOINT names the socket") {
		t.Errorf("exit code %d; stderr:\n%s", code, &stderr)
	}
}

func TestSince(t *testing.T) {
	began := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		text     string
		ago      time.Duration
		is, fits bool
	}{
		{"10m", 9 * time.Minute, true, true},
		{"10m", 11 * time.Minute, true, false},
		{"2026-01-02T11:50:00Z", 10 * time.Minute, true, true},
		{"2026-01-02T12:50:00+01:00", 11 * time.Minute, true, false},
		{"yesterday", 0, false, false},
		{"-10m", 0, false, false},
		{"0s", 0, false, false},
	} {
		var s since
		if err := s.set(tt.text); (err == nil) != tt.is {
			t.Errorf("%s: %v", tt.text, err)
		} else if err == nil && s.wants(began.Add(-tt.ago), began) != tt.fits {
			t.Errorf("%s: what was %v ago is wanted: %t", tt.text, tt.ago, !tt.fits)
		}
	}
	if (&since{}).wants(began, began) {
		t.Error("without the flag it is wanted")
	}
}
