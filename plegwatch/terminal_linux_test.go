package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kubepleg/pleg"
)

// openTerminal opens a new pseudo-terminal and returns both ends.
func openTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	fd := int(user.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// On a real terminal, the table is as wide as the terminal. A file and /dev/null do not count as
// terminals.
func TestTerminalColumns(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	user, program := openTerminal(t)
	l := line{Time: someTime, Namespace: strings.Repeat("n", 60), Pod: strings.Repeat("p", 60), Container: "c",
		Event: pleg.ContainerStarted, State: "running", Cause: pleg.CausePeriod, Initial: true}
	p := newPrinter(outputText, program)
	p.(*textPrinter).headed = true
	lines := bufio.NewReader(user)
	for _, columns := range []uint16{150, 120, 0} {
		if err := unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
			t.Fatal(err)
		}
		if err := p.print(l); err != nil {
			t.Fatal(err)
		}
		got, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		want := int(columns)
		if want == 0 {
			want = 100
		}
		if n := utf8.RuneCountInString(strings.TrimRight(got, "\r\n")); n != want {
			t.Errorf("a line of %d columns in a terminal of %d: %q", n, columns, got)
		}
	}

	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*os.File{file, null} {
		if p := newPrinter(outputText, f).(*textPrinter); p.columns != nil || p.colour {
			t.Errorf("%s is taken for a terminal", f.Name())
		}
	}
}
