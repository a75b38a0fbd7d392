// Command picture makes pictures of package plegz's page:
//
//	cd plegwatch/e2e/browser && go run ./cmd/picture --out ../../../docs/plegz.png --stuck
//
// With axe-core's file axe.min.js (from npm pack axe-core), it also checks the page's
// accessibility:
//
//	go run ./cmd/picture --stuck --axe axe.min.js
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/chromedp/chromedp"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/internal/timetable"
	"github.com/kubepleg/pleg/plegtest/criserver"
	"github.com/kubepleg/pleg/plegwatch/e2e/browser"
)

func main() {
	var w browser.Window
	out := flag.String("out", "plegz.png", "the file to write")
	flag.Int64Var(&w.Width, "width", 1400, "of the window, in pixels")
	flag.Int64Var(&w.Height, "height", 800, "of the window, in pixels")
	flag.BoolVar(&w.Dark, "dark", false, "dark colours")
	flag.BoolVar(&w.Print, "print", false, "as it is printed")
	pods := flag.Int("pods", 6, "how many pods the node has")
	hang := flag.Bool("stuck", false, "make a container stuck")
	after := flag.Duration("after", 30*time.Second, "how long the node has run in the picture")
	freeze := flag.Bool("freeze", false, "have the runtime answer nothing")
	axe := flag.String("axe", "", "axe-core's axe.min.js; a violation is an error")
	script := flag.String("script", "", "what to do in the page before")
	flag.Parse()
	if err := picture(w, *out, *pods, *hang, *freeze, *after, *script, *axe); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func picture(w browser.Window, out string, pods int, hang, freeze bool, after time.Duration, script, axe string) error {
	node, err := browser.StartNode(nil)
	if err != nil {
		return err
	}
	defer node.Close()
	lives := timetable.New(node.Server, clock.RealClock{})
	defer lives.Stop()
	lives.Play(plans(pods)...)
	tab, closeTab, err := browser.Open(context.Background(), w, node.Page.URL)
	if err != nil {
		return err
	}
	defer closeTab()
	time.Sleep(after / 2)
	if hang {
		id, err := node.Run("shop", "payment-0", "payment")
		if err != nil {
			return err
		}
		time.Sleep(2 * time.Second)
		node.Block("ContainerStatus", id)
		if err := node.ExitContainer(id, 1, "Error"); err != nil {
			return err
		}
	}
	if freeze {
		node.Freeze()
		defer node.Thaw()
	}
	time.Sleep(after / 2)
	if script != "" {
		if _, err := chromedp.Run(tab, chromedp.Evaluate[any](script)); err != nil {
			return fmt.Errorf("running %q in the page: %w", script, err)
		}
		time.Sleep(time.Second)
	}
	png, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		return fmt.Errorf("taking the picture: %w", err)
	}
	if err := os.WriteFile(out, png, 0o644); err != nil || axe == "" {
		return err
	}
	return check(tab, axe)
}

// check returns the violations of axe-core's rules, and for each rule the first elements that
// violate it.
func check(tab context.Context, file string) error {
	source, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if _, err := chromedp.Run(tab, chromedp.Evaluate[any](string(source)+"; void 0")); err != nil {
		return fmt.Errorf("loading %s: %w", file, err)
	}
	found, err := chromedp.Run(tab, chromedp.Evaluate[string](`axe.run().then((r) => r.violations.map((v) =>
		v.id + ' (' + v.impact + '): ' + v.help + '\n' +
		v.nodes.slice(0, 5).map((n) => '  ' + n.html.slice(0, 150) + '\n  ' + n.failureSummary).join('\n')).join('\n'))`,
		chromedp.EvalAwaitPromise))
	if err != nil {
		return fmt.Errorf("running axe-core: %w", err)
	}
	if found != "" {
		return fmt.Errorf("violations:\n%s", found)
	}
	fmt.Println("axe-core finds no violation.")
	return nil
}

// plans returns what happens to the pods of a node. A few pods are lively; in the other pods, a
// container ends now and then.
func plans(n int) []timetable.PodPlan {
	const s = time.Second
	container := func(name string, start time.Duration) timetable.ContainerPlan {
		return timetable.ContainerPlan{ContainerConfig: criserver.ContainerConfig{Name: name}, StartAfter: start}
	}
	pod := func(namespace, name string, start time.Duration, containers ...timetable.ContainerPlan) timetable.PodPlan {
		return timetable.PodPlan{
			PodConfig:  criserver.PodConfig{Namespace: namespace, Name: name},
			StartAfter: start, Containers: containers,
		}
	}
	cart := container("cart", s)
	cart.RunFor, cart.ExitCode, cart.Restarts, cart.BackOff, cart.MaxBackOff = 3*s, 1, timetable.Forever, 2*s, 8*s
	search := container("search", s)
	search.RunFor, search.ExitCode, search.Reason, search.Restarts, search.BackOff = 9*s, 137, "OOMKilled", 1, 4*s
	fetch, toPDF := container("fetch", s), container("print", 5*s)
	fetch.RunFor, toPDF.RunFor = 4*s, 7*s
	report := pod("jobs", "report", 3*s, fetch, toPDF)
	canary := pod("shop", "canary", 6*s, container("nginx", s), container("proxy", 2*s))
	canary.LiveFor, canary.LingerFor, canary.ReturnAfter = 10*s, 2*s, 8*s
	plans := []timetable.PodPlan{
		pod("shop", "web-0", 0, container("nginx", s), container("proxy", 2*s)),
		pod("shop", "cart-0", 2*s, cart), pod("shop", "search-0", 4*s, search),
		report, canary, pod("kube-system", "kube-proxy-x7k2p", 0, container("kube-proxy", s)),
	}
	for i := len(plans); i < n; i++ {
		worker := container("worker", time.Duration(i%17)*s/4)
		worker.RunFor, worker.ExitCode = time.Duration(15+i%23)*s, i%7/6
		worker.Restarts, worker.BackOff = timetable.Forever, time.Duration(1+i%4)*s
		plans = append(plans, pod(fmt.Sprintf("team-%02d", i%13), fmt.Sprintf("worker-%04d", i),
			time.Duration(i%10)*s/5, worker))
	}
	return plans[:min(max(n, 0), len(plans))]
}
