package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubepleg/pleg"
)

// filter is what of the events is printed. Each empty list lets everything through.
type filter struct {
	namespaces []string
	pods       []podName
	events     []pleg.PodLifeCycleEventType
}

// podName is a pod's name, in one namespace or, if that is empty, in any.
type podName struct{ namespace, name string }

// shownEvents are the types of events that a generator delivers.
var shownEvents = []pleg.PodLifeCycleEventType{
	pleg.ContainerStarted, pleg.ContainerDied, pleg.ContainerRemoved, pleg.PodSync,
}

// wants reports whether an event is printed.
func (f *filter) wants(e *pleg.PodLifecycleEvent) bool {
	named := func(p podName) bool {
		return p.name == e.Pod.Name && (p.namespace == "" || p.namespace == e.Pod.Namespace)
	}
	return (len(f.namespaces) == 0 || slices.Contains(f.namespaces, e.Pod.Namespace)) &&
		(len(f.pods) == 0 || slices.ContainsFunc(f.pods, named)) &&
		(len(f.events) == 0 || slices.Contains(f.events, e.Type))
}

// addEach adds the values of a flag that may be repeated and may have several, separated
// by commas.
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

func parseNamespace(s string) (string, error) {
	if problems := validation.IsDNS1123Label(s); len(problems) > 0 {
		return "", fmt.Errorf("%q is not the name of a namespace: %s", s, problems[0])
	}
	return s, nil
}

// parsePodName reads a pod's name as the table shows it, with its namespace or without.
func parsePodName(s string) (p podName, err error) {
	namespace, name, both := strings.Cut(s, "/")
	if !both {
		namespace, name = "", s
	} else if p.namespace, err = parseNamespace(namespace); err != nil {
		return podName{}, err
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return podName{}, fmt.Errorf("%q is not the name of a pod: %s", name, problems[0])
	}
	p.name = name
	return p, nil
}

// parseEvent reads a type of event as the table or the JSON shows it.
func parseEvent(s string) (pleg.PodLifeCycleEventType, error) {
	for _, e := range shownEvents {
		if strings.EqualFold(s, string(e)) || strings.EqualFold(s, eventText(e)) {
			return e, nil
		}
	}
	return "", fmt.Errorf("there is no event %q: Started, Died, Removed or PodSync", s)
}

// eventText is the table's name of a type of event.
func eventText(e pleg.PodLifeCycleEventType) string {
	return strings.TrimPrefix(string(e), "Container")
}
