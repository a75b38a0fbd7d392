package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubepleg/pleg"
)

// filter selects the events to print. An empty list or a nil selector selects all events.
type filter struct {
	namespaces []pattern
	pods       []podName
	events     []pleg.PodLifeCycleEventType
	selector   labels.Selector
}

// pattern is a name, or a pattern in the syntax of path.Match.
type pattern string

func (p pattern) fits(name string) bool {
	fits, _ := path.Match(string(p), name) // parsePattern has already rejected malformed patterns
	return fits
}

// podName matches pods by name and namespace. An empty namespace matches every namespace.
type podName struct{ namespace, name pattern }

// shownEvents are the types of events that are printed.
var shownEvents = []pleg.PodLifeCycleEventType{
	pleg.ContainerStarted, pleg.ContainerDied, pleg.ContainerEnded, pleg.ContainerRemoved, pleg.PodSync,
}

// wants reports whether the event of a pod with these labels is printed.
func (f *filter) wants(l *line, podLabels map[string]string) bool {
	inNamespace := func(p pattern) bool { return p.fits(l.Namespace) }
	named := func(p podName) bool {
		return p.name.fits(l.Pod) && (p.namespace == "" || p.namespace.fits(l.Namespace))
	}
	return (len(f.namespaces) == 0 || slices.ContainsFunc(f.namespaces, inNamespace)) &&
		(len(f.pods) == 0 || slices.ContainsFunc(f.pods, named)) &&
		(len(f.events) == 0 || slices.Contains(f.events, l.Event)) &&
		(f.selector == nil || f.selector.Matches(labels.Set(podLabels)))
}

// isEmpty reports whether every event is printed.
func (f *filter) isEmpty() bool {
	return len(f.namespaces)+len(f.pods)+len(f.events) == 0 && f.selector == nil
}

// addEach parses a flag's comma-separated values and appends them to a list.
func addEach[T any](list *[]T, values string, parse func(string) (T, error)) error {
	for value := range strings.SplitSeq(values, ",") {
		value = strings.TrimSpace(value)
		if value == "" {
			return errors.New("it is empty, or has a comma too many")
		}
		v, err := parse(value)
		if err != nil {
			return err
		}
		*list = append(*list, v)
	}
	return nil
}

// patternText matches a text that consists only of the characters of Kubernetes names and patterns.
var patternText = regexp.MustCompile(`^[-a-z0-9.*?\[\]^]+$`)

func parseNamespace(s string) (pattern, error) { return parsePattern("a namespace", s) }

func parsePattern(of, s string) (pattern, error) {
	if _, err := path.Match(s, ""); err != nil || !patternText.MatchString(s) {
		return "", fmt.Errorf("%q is not the name of %s, nor a pattern", s, of)
	}
	return pattern(s), nil
}

// parsePodName parses "name" or "namespace/name", as the table prints pods.
func parsePodName(s string) (p podName, err error) {
	namespace, name, both := strings.Cut(s, "/")
	if !both {
		namespace, name = "", s
	} else if p.namespace, err = parseNamespace(namespace); err != nil {
		return podName{}, err
	}
	p.name, err = parsePattern("a pod", name)
	return p, err
}

// parseEvent parses an event type as the table or the JSON output spells it. It ignores the
// difference between upper and lower case.
func parseEvent(s string) (pleg.PodLifeCycleEventType, error) {
	for _, e := range shownEvents {
		if strings.EqualFold(s, string(e)) || strings.EqualFold(s, eventText(e)) {
			return e, nil
		}
	}
	return "", fmt.Errorf("there is no event %q: Started, Died, Ended, Removed or PodSync", s)
}

// eventText returns an event type as the table prints it.
func eventText(e pleg.PodLifeCycleEventType) string {
	return strings.TrimPrefix(string(e), "Container")
}
