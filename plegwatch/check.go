package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/healthreport"
	"github.com/kubepleg/pleg/internal/printable"
	"github.com/kubepleg/pleg/plegz"
)

// The exit codes of --check. node-problem-detector expects these codes of a custom plugin.
const (
	exitHealthy   = 0
	exitUnhealthy = 1
	exitUnknown   = 2
)

const (
	// maxVerdictBytes is the default limit of node-problem-detector for the output of a plugin.
	// node-problem-detector cuts longer output after this many bytes, even within a character.
	maxVerdictBytes = 80
	// checkTimeout limits a check. node-problem-detector kills a plugin after 5 s and reports
	// "unknown". A check that ends earlier can report a stuck runtime as unhealthy.
	checkTimeout = 4 * time.Second
	// maxReportBytes limits how much of the agent's answer is read. A report of a thousand failing
	// pods is smaller than a megabyte.
	maxReportBytes = 16 << 20
)

// verdict is the result of a check.
type verdict struct {
	code int
	text string
}

// check checks the node's health once, prints the verdict in one line of at most maxVerdictBytes,
// and returns the exit code.
func check(ctx context.Context, f flags, stdout io.Writer) int {
	timeout := f.duration
	if timeout == 0 {
		timeout = checkTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var v verdict
	if len(f.listen) > 0 {
		v = checkAgent(ctx, f.listen[0], time.Now)
	} else {
		v = checkRuntime(ctx, f.endpoint, timeout)
	}
	fmt.Fprintln(stdout, v.text)
	return v.code
}

// checkAgent asks the agent at an address for its health. On a TCP port, any local user could
// answer in place of the agent. On a unix socket, only users who may write to its directory could.
func checkAgent(ctx context.Context, address string, now func() time.Time) verdict {
	// The agent runs on this machine, so the request uses no proxy.
	transport := &http.Transport{DisableKeepAlives: true}
	url := "http://" + listenAddress(address) + "/healthz"
	if path, isSocket := strings.CutPrefix(address, unixScheme); isSocket {
		url = "http://localhost/healthz"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return unknown(err.Error())
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return unknown("the agent does not answer: " + ending(err.Error(), 45))
	}
	defer resp.Body.Close()
	// If the agent switches protocols, the end of ctx no longer closes the connection.
	defer context.AfterFunc(ctx, func() { _ = resp.Body.Close() })()
	var report agentReport
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReportBytes)).Decode(&report); err != nil {
		return unknown(fmt.Sprintf("%s, without a health report, of %s", resp.Status, address))
	}
	for _, p := range report.FailingPods {
		report.HealthReport.FailingPods = append(report.HealthReport.FailingPods, p.FailingPod)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		if report.Level == plegz.LevelWarning {
			return verdict{exitHealthy, fit("PLEG is healthy, but " + trouble(&report, now()))}
		}
		return verdict{exitHealthy, fit("PLEG is healthy: " + healthreport.Plural(report.Pods, "pod"))}
	case http.StatusServiceUnavailable:
		return verdict{exitUnhealthy, fit("PLEG is not healthy: " + trouble(&report, now()))}
	default:
		return unknown(resp.Status + " of " + address)
	}
}

// agentReport contains the fields of a plegz.Healthz answer that a verdict uses.
type agentReport struct {
	plegz.Condition
	pleg.HealthReport
	FailingPods []struct {
		pleg.FailingPod
		Container string
	} `json:"failingPods"` // the embedded report has a field of this name
}

// trouble describes the worst problem of a report in a few words, because the report's own sentence
// is too long for a verdict. The pod and the container come first, so that the function fit does
// not cut them off.
func trouble(r *agentReport, now time.Time) string {
	since := func(t time.Time) string {
		if t = t.UTC(); now.Sub(t) > 12*time.Hour {
			return t.Format(" since 2 Jan 15:04 UTC")
		}
		return t.Format(" since 15:04:05 UTC")
	}
	// Before the first list, nobody knows whether the problem is older than the agent.
	atLeast := func(t time.Time) string {
		if r.LastRelist.IsZero() {
			return strings.Replace(since(t), " since ", " since at least ", 1)
		}
		return since(t)
	}
	name := func(i int) string {
		p := r.FailingPods[i]
		return strings.TrimSuffix(p.Namespace+"/"+p.Name+" "+p.Container, " ")
	}
	listIsStuck := healthreport.ListIsStuck(&r.HealthReport, now)
	stuck, more := -1, ""
	for i, p := range r.FailingPods {
		if listIsStuck && healthreport.BlocksNoList(&r.HealthReport, &p.FailingPod) {
			continue
		}
		if !p.StuckSince.IsZero() && (stuck < 0 || p.StuckSince.Before(r.FailingPods[stuck].StuckSince)) {
			stuck = i
		}
	}
	if n := len(r.FailingPods) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	unlisted := healthreport.StuckContainers(&r.HealthReport, now)
	const noAnswer = "no answer from the runtime"
	refused := refusal(r.RelistError)
	switch list := r.StuckRelist; {
	case list != nil && list.Frozen && r.LastAnswer.IsZero():
		return noAnswer + atLeast(cmp.Or(r.RelistFailingSince, list.Since)) // lists may have failed before
	case list != nil && list.Frozen,
		stuck >= 0 && !r.LastAnswer.IsZero() && !r.FailingPods[stuck].StuckSince.Before(r.LastAnswer):
		return noAnswer + since(r.LastAnswer)
	case healthreport.InspectsNone(&r.HealthReport):
		return "no pod can be inspected: restart the runtime"
	case stuck >= 0:
		return name(stuck) + " is stuck" + since(r.FailingPods[stuck].StuckSince) + more
	case list != nil && len(unlisted) > 0:
		object, _, _ := strings.Cut(strings.TrimPrefix(unlisted[0].Object, "container "), " (")
		if namespace, pod, container, is := healthreport.Unlisted(unlisted[0].Object); is {
			object = namespace + "/" + pod + " " + container
		}
		if n := len(unlisted) - 1; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}
		return object + " is stuck" + atLeast(list.Since) + more
	case list != nil:
		return "a container blocks the lists" + atLeast(list.Since)
	case refused != "":
		return "no answer (" + refused + ")" + atLeast(cmp.Or(r.LastAnswer, r.LastRelist, r.RelistFailingSince))
	case r.RelistError != "" && r.LastAnswer.IsZero() && r.LastRelist.IsZero():
		return noAnswer + atLeast(r.RelistFailingSince)
	case r.RelistError != "" && r.LastRelist.IsZero():
		return "no list yet; " + ending(r.RelistError, 45)
	case r.RelistError != "":
		return "no list" + since(r.LastRelist) + "; " + ending(r.RelistError, 31)
	case len(r.FailingPods) > 0:
		return name(0) + " cannot be inspected" + more
	}
	_, sentence, _ := strings.Cut(r.Sentence, ": ")
	return cmp.Or(sentence, r.Reason)
}

// checkRuntime returns "healthy" if the runtime answers and lists its pods.
func checkRuntime(ctx context.Context, endpoint string, within time.Duration) verdict {
	named := endpoint != autoEndpoint
	if named {
		// Dial makes no call. It fails if the endpoint cannot be a runtime's socket.
		r, err := cri.Dial(endpoint)
		if err != nil {
			return unknown(err.Error())
		}
		defer r.Close()
	} else {
		endpoint = ""
	}
	runtime, err := cri.Connect(ctx, endpoint)
	if err != nil {
		return runtimeTrouble(err, named, "answer", within)
	}
	defer runtime.Close()
	pods, err := runtime.GetPods(ctx, true)
	if err != nil {
		return runtimeTrouble(err, true, "list its pods", within) // it has answered Version
	}
	return verdict{exitHealthy, fit("the runtime is healthy: " + healthreport.Plural(len(pods), "pod"))}
}

// runtimeTrouble returns the verdict for an error of the runtime. named is true if the runtime's
// endpoint is known. asked is what the runtime should have done.
func runtimeTrouble(err error, named bool, asked string, within time.Duration) verdict {
	// gRPC passes the error of connect(2) as text, which errors.Is cannot match.
	denied := errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "permission denied")
	switch {
	case denied:
		return unknown("no right to ask the runtime: " + ending(err.Error(), 45))
	case !named && onlyMissing(err):
		return unknown("no runtime is found at the default sockets")
	case errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded:
		return verdict{exitUnhealthy, fit(fmt.Sprintf("the runtime does not %s within %v", asked, within))}
	default:
		return verdict{exitUnhealthy, fit("the runtime is not healthy: " + ending(err.Error(), 45))}
	}
}

// onlyMissing reports whether err, of the default sockets, says of each that it does not exist.
func onlyMissing(err error) bool {
	if joined, is := err.(interface{ Unwrap() []error }); is { // errors.As would find only the first
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !onlyMissing(err) })
	}
	if inner := errors.Unwrap(err); inner != nil {
		return onlyMissing(inner)
	}
	return errors.Is(err, fs.ErrNotExist)
}

func unknown(text string) verdict { return verdict{exitUnknown, fit(text)} }

// refusal returns why no process listens at the runtime's socket, in a few words. It returns "" for
// another error, such as an error of the runtime about its own files.
func refusal(text string) string {
	switch {
	case !strings.Contains(text, "Error while dialing"): // gRPC's text
		return ""
	case strings.Contains(text, "connection refused"):
		return "connection refused"
	case strings.Contains(text, "no such file or directory"):
		return "no socket"
	default:
		return ""
	}
}

// ending shortens an error to about the given number of bytes. It keeps the last parts, because the last
// part contains the cause.
func ending(text string, most int) string {
	text = strings.TrimRight(text, `"\ `)
	if len(text) <= most {
		return text
	}
	text = text[len(text)-most:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	for _, gap := range []string{": ", " "} {
		if _, rest, ok := strings.Cut(text, gap); ok {
			return "... " + rest
		}
	}
	return "... " + text
}

// fit shortens a text to a verdict: one line of at most maxVerdictBytes.
func fit(text string) string {
	const more = "..."
	text = printable.Text(text)
	if len(text) <= maxVerdictBytes {
		return text
	}
	end := maxVerdictBytes - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
