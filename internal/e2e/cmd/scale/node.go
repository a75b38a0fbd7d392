package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubepleg/pleg/internal/serverconfig"
	"github.com/kubepleg/pleg/plegtest/criserver"
)

// cost is the cost of an agent during the measurement.
type cost struct {
	began          time.Time
	took, cpu      time.Duration
	rss, anonymous float64
	calls          float64
	scraped        // the last scrape
	scrape         time.Duration
}

// begin records the agent's counters at the start of the measurement.
func (c *cost) begin(ctx context.Context, a *agent) (err error) {
	if c.scraped, err = a.scrape(ctx); err != nil {
		return err
	}
	c.calls, c.began = c.scraped.calls, time.Now()
	c.cpu, err = a.cpu()
	return err
}

// end replaces each counter by its increase since begin was called, and records the agent's memory.
func (c *cost) end(a *agent) error {
	ended, err := a.cpu()
	if err != nil {
		return err
	}
	c.took, c.cpu, c.scrape = time.Since(c.began), ended-c.cpu, c.scraped.took
	c.calls = c.scraped.calls - c.calls
	c.rss, c.anonymous, err = a.memory()
	return err
}

// numbers parses a list of numbers that are separated by commas.
func numbers(list string) (numbers []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no number", text)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// measured measures agents on a node with this number of pods. It starts one agent for each value
// in exitEvents. The argument rate is how many containers die and are restarted in each second.
func measured(ctx context.Context, program string, pods, rate int) (costs []cost, err error) {
	node, err := criserver.Start(serverconfig.With[criserver.Option](serverconfig.Config{EncodedLists: true}))
	if err != nil {
		return nil, err
	}
	defer node.Stop()
	containers, err := fill(node, pods)
	if err != nil {
		return nil, err
	}
	agents := make([]*agent, len(exitEvents))
	for i, exits := range exitEvents {
		if agents[i], err = startAgent(ctx, program, node.Endpoint(), "--exit-events", exits); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, agents[i].stop()) }()
	}

	live := time.NewTimer(*settle)
	defer live.Stop()
	change := ticker(rate)
	defer change.Stop()
	next := 0
	// The function until restarts containers at the given rate. It returns when the timer live
	// fires.
	until := func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-live.C:
				return nil
			case <-change.C:
				if err := restart(node, containers, next); err != nil {
					return err
				}
				next = (next + 1) % len(containers)
			}
		}
	}
	if err := until(); err != nil {
		return nil, err
	}
	costs = make([]cost, len(agents))
	for i, a := range agents {
		if err := costs[i].begin(ctx, a); err != nil {
			return nil, err
		}
	}
	scrapes := int(*duration / *scrape)
	for range max(1, scrapes) {
		live.Reset(min(*scrape, *duration))
		if err := until(); err != nil {
			return nil, err
		}
		for i, a := range agents {
			if costs[i].scraped, err = a.scrape(ctx); err != nil {
				return nil, err
			}
		}
	}
	for i, a := range agents {
		if err := costs[i].end(a); err != nil {
			return nil, err
		}
	}
	return costs, nil
}

// ticker returns a ticker of rate ticks in a second. It never ticks if rate is 0.
func ticker(rate int) *time.Ticker {
	if rate == 0 {
		t := time.NewTicker(time.Hour)
		t.Stop()
		return t
	}
	return time.NewTicker(time.Second / time.Duration(rate))
}

// fill creates pods of a sandbox and two containers, with the labels and annotations of a
// Deployment's pod. It returns the IDs of the containers.
func fill(node *criserver.Server, pods int) (ids []string, err error) {
	for i := range pods {
		labels := map[string]string{
			"app.kubernetes.io/name": "frontend", "app.kubernetes.io/instance": "frontend-production",
			"app.kubernetes.io/version": "v1.2.3", "app.kubernetes.io/part-of": "storefront",
			"app.kubernetes.io/managed-by": "Helm", "pod-template-hash": "6d4cf56db6",
		}
		sandbox := node.RunPod(criserver.PodConfig{
			Namespace: "production", Name: fmt.Sprintf("frontend-6d4cf56db6-%05d", i), Labels: labels,
		})
		for _, name := range []string{"server", "sidecar"} {
			id, err := node.RunContainer(sandbox, criserver.ContainerConfig{
				Name: name, Image: "registry.example.com/team/" + name + ":v1.2.3",
			})
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// restart ends a container, starts a new one in its place, and removes the old one.
func restart(node *criserver.Server, ids []string, i int) error {
	dead := ids[i]
	if err := node.ExitContainer(dead, 1, "Error"); err != nil {
		return err
	}
	id, err := node.RestartContainer(dead)
	if err != nil {
		return err
	}
	ids[i] = id
	return node.RemoveContainer(dead)
}
