package main

import (
	"context"
	"errors"
	"time"
)

// undeletedFor is how long runc deletes nothing: less than the 10 s that containerd gives itself
// for the end of a container before it tries again ever more rarely.
const undeletedFor = 5 * time.Second

// withoutDeletion measures crashes while runc, which is to delete the dead containers, hangs. The
// runtime tells of the exits, and shows the containers as running until they are deleted: whoever
// makes a successor sooner makes it beside one that is dead and not yet taken away.
func (m *measurement) withoutDeletion(ctx context.Context, v variant) error {
	return m.under(ctx, v, func() error {
		f, err := m.node.daemon.HangRunc("delete", "")
		if err != nil {
			return err
		}
		healed := make(chan error, 1)
		time.AfterFunc(undeletedFor, func() { healed <- f.Heal() })
		victims := m.names[:min(len(m.names), 5)]
		err = m.crashAll(ctx, v, crashedUndeleted, victims, 500*time.Millisecond)
		return errors.Join(err, <-healed)
	})
}
