package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubepleg/pleg"
	"github.com/kubepleg/pleg/cri"
	"github.com/kubepleg/pleg/internal/printable"
)

// The exit codes of --check, as node-problem-detector expects them of a custom plugin.
const (
	exitHealthy   = 0
	exitUnhealthy = 1
	exitUnknown   = 2
)

const (
	// maxVerdictBytes is how many bytes of a plugin's output node-problem-detector keeps by
	// default. It cuts bytes, not characters.
	maxVerdictBytes = 80
	// checkTimeout is shorter than the 5 s after which node-problem-detector kills a plugin, so
	// that a stuck runtime is reported as unhealthy, not as unknown.
	checkTimeout = 4 * time.Second
	// maxReportBytes bounds what is read of an answer. A report of a thousand failing pods
	// has less than a megabyte.
	maxReportBytes = 16 << 20
)

// verdict is the result of a check.
type verdict struct {
	code int
	text string
}

// check asks once whether the node is healthy, prints the answer in a line of at most
// maxVerdictBytes, and returns the exit code.
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

// checkAgent asks the agent at an address for its health. Any local user may answer at a port. At a
// unix socket, only a user who may write to its directory can.
func checkAgent(ctx context.Context, address string, now func() time.Time) verdict {
	// The agent is on this machine, so no proxy is used.
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
		return unknown("the agent does not answer: " + ending(err.Error()))
	}
	defer resp.Body.Close()
	// ctx does not end a connection that has switched protocols.
	defer context.AfterFunc(ctx, func() { _ = resp.Body.Close() })()
	var report pleg.HealthReport
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReportBytes)).Decode(&report); err != nil {
		return unknown(fmt.Sprintf("%s, without a health report, of %s", resp.Status, address))
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return verdict{exitHealthy, fit(fmt.Sprintf("PLEG is healthy: %d pods", report.Pods))}
	case http.StatusServiceUnavailable:
		return verdict{exitUnhealthy, fit("PLEG is not healthy: " + trouble(report, now()))}
	default:
		return unknown(resp.Status + " of " + address)
	}
}

// trouble describes in a few words what is wrong, because the reason of a report is too long for a verdict.
func trouble(r pleg.HealthReport, now time.Time) string {
	var stuck []pleg.FailingPod
	for _, p := range r.FailingPods {
		if !p.StuckSince.IsZero() {
			stuck = append(stuck, p)
		}
	}
	listed := "no list yet"
	if !r.LastRelist.IsZero() {
		age := now.Sub(r.LastRelist)
		if age < time.Minute && len(stuck) > 0 {
			return fmt.Sprintf("%d pods are stuck, one is %s/%s", len(stuck), stuck[0].Namespace, stuck[0].Name)
		}
		listed = fmt.Sprintf("no list for %v", roughly(age))
	}
	switch {
	case len(r.CallsInFlight) > 0:
		c := r.CallsInFlight[0]
		return fmt.Sprintf("%s; %s hangs for %v", listed, c.Method, roughly(now.Sub(c.Since)))
	case r.RelistError != "":
		return listed + "; " + ending(r.RelistError)
	default:
		return listed + "; " + r.Reason
	}
}

// checkRuntime asks the runtime, which must answer and list its pods.
func checkRuntime(ctx context.Context, endpoint string, within time.Duration) verdict {
	named := endpoint != autoEndpoint
	if named {
		// Dial makes no call, and fails if there can be no runtime at the endpoint.
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
		return runtimeTrouble(err, named, within)
	}
	defer runtime.Close()
	pods, err := runtime.GetPods(ctx, true)
	if err != nil {
		return runtimeTrouble(err, true, within)
	}
	return verdict{exitHealthy, fit(fmt.Sprintf("the runtime is healthy: %d pods", len(pods)))}
}

// runtimeTrouble is the verdict on a runtime that has not answered. named is true if its endpoint is known.
func runtimeTrouble(err error, named bool, within time.Duration) verdict {
	// gRPC passes the error of connect(2) as text.
	denied := errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "permission denied")
	switch {
	case denied:
		return unknown("no right to ask the runtime: " + ending(err.Error()))
	case !named:
		return unknown("no runtime is found at the default sockets")
	case errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded:
		return verdict{exitUnhealthy, fit(fmt.Sprintf("the runtime does not answer within %v", within))}
	default:
		return verdict{exitUnhealthy, fit("the runtime is not healthy: " + ending(err.Error()))}
	}
}

func unknown(text string) verdict { return verdict{exitUnknown, fit(text)} }

// ending returns the end of an error, where its cause is, if it is too long for a verdict.
func ending(text string) string {
	const most = 45
	if len(text) <= most {
		return text
	}
	text = text[len(text)-most:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	if _, words, ok := strings.Cut(text, " "); ok {
		text = words
	}
	return "... " + text
}

// fit makes a text fit into a verdict: one line, cut at maxVerdictBytes.
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
