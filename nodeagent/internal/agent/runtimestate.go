package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/clock"

	"github.com/kubepleg/pleg/nodeagent/internal/runtime"
)

const (
	// runtimeStatusPeriod is how often the agent asks for the runtime's status.
	runtimeStatusPeriod = 5 * time.Second
	// maxWaitForContainerRuntime is how long these calls may fail before the runtime counts as down.
	maxWaitForContainerRuntime = 30 * time.Second
)

// runtimeState knows why pods cannot be synced. Its methods are safe for concurrent use.
type runtimeState struct {
	// Set before the first call of another method.
	clock        clock.PassiveClock
	healthChecks []healthCheck

	mu          sync.Mutex
	lastSync    time.Time // when a call last showed a ready runtime, or zero; guarded by mu
	statusError error     // why the newest call failed, or nil; guarded by mu
	notReady    error     // why the runtime is not ready, or nil; guarded by mu
}

// healthCheck is a check with the name that its error begins with.
type healthCheck struct {
	name  string
	check func() (bool, error)
}

// addHealthCheck adds a check that runtimeErrors makes.
func (s *runtimeState) addHealthCheck(name string, check func() (bool, error)) {
	s.healthChecks = append(s.healthChecks, healthCheck{name, check})
}

// setRuntimeStatus records the result of a call for the runtime's status.
func (s *runtimeState) setRuntimeStatus(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.lastSync, s.statusError, s.notReady = s.clock.Now(), nil, nil
	case errors.Is(err, runtime.ErrNotReady):
		s.statusError, s.notReady = nil, err
	default:
		s.statusError = err
	}
}

// runtimeErrors returns why pods cannot be synced, or nil.
func (s *runtimeState) runtimeErrors() error {
	var errs []error
	s.mu.Lock()
	switch {
	case s.notReady != nil:
		errs = append(errs, s.notReady)
	case s.lastSync.IsZero() && s.statusError == nil:
		errs = append(errs, errors.New("the container runtime's status is not known yet"))
	case s.clock.Since(s.lastSync) >= maxWaitForContainerRuntime:
		reason := s.statusError
		if reason == nil {
			reason = errors.New("it does not answer a call for its status")
		}
		errs = append(errs, fmt.Errorf("container runtime is down: %w", reason))
	}
	s.mu.Unlock()
	for _, c := range s.healthChecks {
		if healthy, why := c.check(); !healthy {
			errs = append(errs, fmt.Errorf("%s is not healthy: %w", c.name, why))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// updateRuntimeUp asks for the runtime's status.
func (a *Agent) updateRuntimeUp(ctx context.Context) {
	if err := a.Runtime.Ready(ctx); ctx.Err() == nil {
		a.runtimeState.setRuntimeStatus(err)
	}
}
