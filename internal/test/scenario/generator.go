package scenario

import (
	"context"
	"fmt"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func start(s *scenario, _ command) string {
	s.g.Start(context.Background())
	return ""
}

func stop(s *scenario, _ command) string {
	began := time.Now()
	s.g.Stop()
	return took("Stop", began)
}

func relist(s *scenario, _ command) string {
	began := time.Now()
	_ = s.g.Relist(context.Background())
	return took("Relist", began)
}

// The function took returns a message with the duration of a call; "" if the call took no time.
func took(method string, began time.Time) string {
	if took := time.Since(began); took > 0 {
		return fmt.Sprintf("%s took %v", method, took)
	}
	return ""
}

// request calls RequestRelist for one or more pods, once or several times, all at the same instant.
func request(s *scenario, c command) string {
	for range c.number("times", 1) {
		for _, a := range c.args {
			if a.Key == "pod" {
				s.g.RequestRelist(types.UID(a.Vals[0]))
			}
		}
	}
	return ""
}

func reinspect(s *scenario, c command) string {
	s.g.RequestReinspect(c.uid())
	return ""
}

// advance lets time pass. A fake clock advances in steps of 10 ms.
func advance(s *scenario, c command) string {
	d := c.parseDuration(c.first())
	if s.fake == nil {
		time.Sleep(d)
		return ""
	}
	for ; d > 0; d -= 10 * time.Millisecond {
		s.fake.Step(min(d, 10*time.Millisecond))
		synctest.Wait()
	}
	return ""
}

// jump sets a fake clock forwards or backwards in one step.
func jump(s *scenario, c command) string {
	if s.fake == nil {
		c.fatalf(`it needs "node clock=fake"`)
	}
	s.fake.SetTime(s.fake.Now().Add(c.parseDuration(c.first())))
	return ""
}
