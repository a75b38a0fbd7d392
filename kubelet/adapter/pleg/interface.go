package pleg

import (
	"context"

	internalapi "k8s.io/cri-api/pkg/apis"
)

// EventedPLEG does nothing: with or without the gate EventedPLEG, the generator itself reads the
// runtime's events. A second reader would take events away from the generator, because some
// runtimes send each event to only one reader.
type EventedPLEG struct{}

// NewEventedPLEG returns an EventedPLEG that does nothing.
func NewEventedPLEG(internalapi.RuntimeService, PodLifecycleEventGenerator, int) *EventedPLEG {
	return &EventedPLEG{}
}

// Start does nothing.
func (*EventedPLEG) Start(context.Context) {}

// Start starts the generator, which runs until ctx ends. A second Start does nothing.
func (g *GenericPLEG) Start(ctx context.Context) { g.start(ctx) }

// Relist lists all pods.
func (g *GenericPLEG) Relist(ctx context.Context) { g.relist(ctx) }
