package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// machines describes the machine that qemu makes for each processor architecture.
var machines = map[string]struct {
	command []string
	console string // the device
	// emulated is the processor without KVM. It lacks features that are slow to emulate, such as
	// pointer authentication by the architecture's own algorithm.
	emulated string
}{
	"amd64": {[]string{"qemu-system-x86_64", "-M", "q35"}, "ttyS0", "max,-erms,-fsrm,-la57,-smap,-smep,-xsave,-avx,-avx2"},
	"arm64": {[]string{"qemu-system-aarch64", "-M", "virt"}, "ttyAMA0", "max,pauth-impdef=on"},
}

// quick contains kernel arguments that make an emulated node faster. Together with the features that the
// emulated processor lacks, they more than halve the time of the tests. Most of that comes from string
// instructions with the prefix REP: they are emulated one element at a time, so the kernel uses loops
// instead. With KVM, the arguments matter little.
const quick = "clearcpuid=rep_good init_on_alloc=0 hardened_usercopy=off mitigations=off rcupdate.rcu_expedited=1"

// processor returns the options of qemu for an architecture: KVM if it can work, with emulation as
// the fallback. Some machines have /dev/kvm but no processor support for it. If qemu used KVM there,
// it would abort, or the node would not boot.
func processor(arch string) []string {
	emulated := []string{"-accel", "tcg,thread=multi", "-cpu"}
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	if _, err := os.Stat("/dev/kvm"); err != nil || arch != runtime.GOARCH ||
		arch == "amd64" && !regexp.MustCompile(`\b(vmx|svm)\b`).Match(cpu) {
		return append(emulated, machines[arch].emulated)
	}
	return append(append([]string{"-accel", "kvm"}, emulated...), "max")
}

// processors returns the number of processors of a node: two if this machine has enough for all nodes
// that run at once, else one.
func processors() int { return max(1, min(2, runtime.NumCPU() / *together)) }

var making sync.Mutex

// run boots a node, which runs the tests and then switches itself off. The console's output is
// written to a file below .cache.
func (c cell) run(ctx context.Context, root string) (*result, error) {
	r := &result{Date: time.Now().UTC().Format(time.DateOnly), Rounds: c.rounds()}
	tmp, err := os.MkdirTemp("", "pleg-nodes-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(tmp)
	making.Lock() // the folders below .cache are filled by one node at a time
	kernel, initrd, err := c.image(ctx, root, tmp)
	making.Unlock()
	if err != nil {
		return r, fmt.Errorf("making the node: %w", err)
	}
	path := filepath.Join(root, ".cache", "nodes", strings.ReplaceAll(c.String(), "/", "-")+".log")
	log, err := os.Create(path)
	if err != nil {
		return r, err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("the node has run for %v", *limit))
	defer cancel()
	m := machines[c.arch]
	args := append(append(slices.Clone(m.command[1:]), processor(c.arch)...),
		"-smp", strconv.Itoa(processors()), "-m", "5G",
		"-display", "none", "-monitor", "none", "-nic", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", kernel, "-initrd", initrd, "-append", strings.Join([]string{
			"console=" + m.console, "quiet", "panic=-1", quick, "node.runtime=" + c.runtime, "node.tests=" + *tests,
			"node.rounds=" + strconv.Itoa(r.Rounds), "node.long=" + strconv.FormatBool(*long), c.arguments}, " "))
	cmd := exec.CommandContext(ctx, m.command[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	defer runtime.UnlockOSThread()
	cmd.Stderr = log
	console, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	last := r.read(io.TeeReader(console, log), c.String())
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = r.verdict(c)
	}
	if err != nil {
		err = fmt.Errorf("%w; the console, which is in %s, ends:\n%s", err, path, last)
	}
	return r, err
}

// These patterns match the console lines that contain results.
var (
	testLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (Test\w+)`)
	nodeLine = regexp.MustCompile(`^NODE (kernel|exit) (\S+)`)
	// attrLine matches the version that the runtime reports. endsLine matches the row of totals
	// that TestExitsWhileTheRuntimeIsAway logs.
	attrLine = regexp.MustCompile(`^=== ATTR +Test\w+ runtime (.*)`)
	endsLine = regexp.MustCompile(`: \| \S+ \| all \| (\d+ of \d+) \| (.*) \|$`)
)

// read reads a console to its end, and returns the last 60 lines. It prints the results of tests
// after the node's name.
func (r *result) read(console io.Reader, name string) string {
	var last []string
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := string(bytes.TrimRight(lines.Bytes(), "\r"))
		r.take(line)
		if last = append(last, line); len(last) > 2000 {
			last = slices.Clone(last[1000:])
		}
		if testLine.MatchString(line) {
			fmt.Fprintf(os.Stderr, "%s: %s\n", name, line)
		}
	}
	_, _ = io.Copy(io.Discard, console) // a line was too long, and ended the scan
	return tail(strings.Join(last, "\n"), 60)
}

func (r *result) take(line string) {
	if m := testLine.FindStringSubmatch(line); m != nil {
		switch m[1] {
		case "PASS":
			r.Passed++
			// The test failed first, and passed when it was run again.
			if i := slices.Index(r.Failed, m[2]); i >= 0 {
				r.Failed, r.Second = slices.Delete(r.Failed, i, i+1), append(r.Second, m[2])
			}
		case "FAIL":
			if !slices.Contains(r.Failed, m[2]) {
				r.Failed = append(r.Failed, m[2])
			}
		case "SKIP":
			r.Skipped = append(r.Skipped, m[2])
		}
	}
	if m := nodeLine.FindStringSubmatch(line); m != nil {
		switch m[1] {
		case "kernel":
			r.Kernel = m[2]
		case "exit":
			r.Exit = m[2]
		}
	}
	if m := attrLine.FindStringSubmatch(line); m != nil {
		r.Runtime = m[1]
	}
	if m := endsLine.FindStringSubmatch(line); m != nil {
		r.Lost, r.Right = m[1], strings.Split(m[2], " | ")
	}
}

// verdict returns an error if the tests did not succeed. It is for a run that qemu ended without an
// error.
func (r *result) verdict(c cell) error {
	for _, test := range r.Skipped {
		if reason(c.name, c.runtime, test) == "" {
			return fmt.Errorf("%s was skipped, and no reason is known", test)
		}
	}
	switch {
	case r.Exit == "":
		return fmt.Errorf("the node has ended before its tests")
	case r.Exit != "0":
		return fmt.Errorf("the tests ended with %s; failed: %s", r.Exit, strings.Join(r.Failed, ", "))
	case r.Passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
