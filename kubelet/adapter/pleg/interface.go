package pleg

import (
	"context"

	internalapi "k8s.io/cri-api/pkg/apis"
)

// EventedPLEG does nothing: the generator reads the runtime's events itself, with or without the gate
// EventedPLEG. A second reader would take events away, because some runtimes send each event to one
// reader only.
type EventedPLEG struct{}

// NewEventedPLEG returns one.
func NewEventedPLEG(internalapi.RuntimeService, PodLifecycleEventGenerator, int) *EventedPLEG {
	return &EventedPLEG{}
}

// Start does nothing.
func (*EventedPLEG) Start(context.Context) {}

// Start starts the generator, which runs until ctx ends. A second Start does nothing.
func (g *GenericPLEG) Start(ctx context.Context) { g.start(ctx) }

// Relist lists all pods.
func (g *GenericPLEG) Relist(ctx context.Context) { g.relist(ctx) }
