package attribution

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubepleg/pleg"
)

const (
	// missFor is how long the Attributor waits before it repeats a search that found no container.
	// The generator's lists go on meanwhile, so a container that appears is found without a search.
	missFor = 10 * time.Second
	// maxMisses is how many such searches are remembered.
	maxMisses = 10_000
	// maxPodLists is how many pod lists may begin in a second. Other searches share a full list.
	maxPodLists = 10
	// podListsAtOnce is how many pod lists may run at once. If more than eight run, the generator makes
	// a full list (rule 10), in addition to those of listAll.
	podListsAtOnce = 4
	// listTimeout is how long a search waits for its list. It is longer than the generator lets a
	// stuck inspection delay Relist.
	listTimeout = 2 * time.Second
)

// errBusy means that the context of a search ends before the next full list may begin.
var errBusy = errors.New("too many searches for unknown containers")

// miss is a search that found nothing.
type miss struct {
	at  time.Time
	err error // why no list could show the container; nil if a list did not show it
}

// search is a search that several callers wait for.
type search struct {
	done chan struct{} // closed when the fields below are set
	err  error
	// abandoned is true if the caller that made the search has given up.
	abandoned bool
}

// podOf returns the pod of a container. If the cache does not have the container, podOf searches for it.
func (a *Attributor) podOf(ctx context.Context, in place) (*pleg.PodStatus, error) {
	if pod, found := a.generator.Cache().ByContainerID(in.container); found {
		return pod, nil
	}
	err := a.share(ctx, in.container, func() error { return a.search(ctx, in) })
	pod, found := a.generator.Cache().ByContainerID(in.container)
	switch {
	case found: // even if the search has failed, for example because the pod's inspection is stuck
		return pod, nil
	case err != nil:
		return nil, fmt.Errorf("%w %s: %w", ErrNotSearched, in.container, err)
	}
	return nil, fmt.Errorf("%w %s", ErrUnknownContainer, in.container)
}

// share makes a search, or waits for the present search with the same key. If the caller that makes
// a search gives up, another caller that waits for it makes its own.
func (a *Attributor) share(ctx context.Context, key string, call func() error) error {
	for {
		a.mu.Lock()
		s, joined := a.searches[key]
		if !joined {
			s = &search{done: make(chan struct{})}
			a.searches[key] = s
		}
		a.mu.Unlock()
		if !joined {
			s.err = call()
			s.abandoned = ctx.Err() != nil || errors.Is(s.err, errBusy)
			a.mu.Lock()
			if a.searches[key] == s {
				delete(a.searches, key)
			}
			a.mu.Unlock()
			close(s.done)
			return s.err
		}
		select {
		case <-s.done:
			if !s.abandoned {
				return s.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// search makes a list that shows the container if it exists. It makes none if ctx has ended, or if
// an earlier search has found the container, or has missed it less than missFor ago.
func (a *Attributor) search(ctx context.Context, in place) (err error) {
	now := a.generator.Clock().Now()
	if _, found := a.generator.Cache().ByContainerID(in.container); found {
		return nil
	}
	if last, missed := a.missed(in.container, now); missed {
		return last.err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if in.pod != "" && a.mayListPod(now) {
		err = a.listPod(ctx, in.pod, now)
	} else {
		err = a.listAll(ctx)
	}
	_, found := a.generator.Cache().ByContainerID(in.container)
	if !found && ctx.Err() == nil && !errors.Is(err, errBusy) {
		a.miss(in.container, miss{now, err})
	}
	return err
}

// missed returns the last search for the container if it found nothing less than missFor ago.
func (a *Attributor) missed(id string, now time.Time) (last miss, missed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, missed = a.misses[id]
	return last, missed && now.Sub(last.at) < missFor
}

func (a *Attributor) miss(id string, m miss) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.misses) >= maxMisses {
		clear(a.misses)
	}
	a.misses[id] = m
}

// mayListPod reports whether another pod list may begin now, and counts it. If it returns true, the
// caller must call listPod.
func (a *Attributor) mayListPod(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.second) >= time.Second {
		a.second, a.podLists = now, 0
	}
	if a.podLists >= maxPodLists || a.runningPodLists >= podListsAtOnce {
		return false
	}
	a.podLists++
	a.runningPodLists++
	return true
}

// listPod waits for a list of the pod that begins after now, and for the inspection of a changed
// pod. It fails only if it does not get them in time.
func (a *Attributor) listPod(ctx context.Context, uid types.UID, now time.Time) error {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.runningPodLists--
	}()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if _, _, err := a.generator.Cache().LookupNewerThan(ctx, uid, now); ctx.Err() != nil {
		return err
	}
	return nil // a failed inspection does not matter: the list has succeeded
}

// listAll makes a full list, at least a second after the previous one. Callers that come before the
// list begins share it. The wait is in real time.
func (a *Attributor) listAll(ctx context.Context) error {
	clock := a.generator.Clock()
	return a.share(ctx, "", func() error {
		a.mu.Lock()
		now := clock.Now()
		wait := a.fullList.Add(time.Second).Sub(now)
		a.mu.Unlock()
		if wait > 0 {
			if deadline, has := ctx.Deadline(); has && deadline.Sub(now) < wait {
				return errBusy // so that a loop over many processes does not wait for each
			}
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		a.mu.Lock()
		a.fullList = clock.Now()
		delete(a.searches, "") // the list does not answer callers that come after its beginning
		a.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		return a.generator.Relist(ctx)
	})
}
