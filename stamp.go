package pleg

import "github.com/kubepleg/pleg/internal/schedule"

// stamp orders lists by the moment at which they began.
type stamp = schedule.Stamp
