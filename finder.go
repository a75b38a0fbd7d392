package pleg

import "slices"

// finder finds a container in a list by its ID: at the expected place, else by walking a
// short list, else in a map.
type finder struct {
	list []*Container
	byID map[string]int // indices in list; nil for a short one
}

// longList is the length from which on a map is cheaper than walking the list. No ordinary
// pod has as many containers.
const longList = 64

func finderIn(list []*Container) finder {
	f := finder{list: list}
	if len(list) > longList {
		f.byID = make(map[string]int, len(list))
		for i, c := range list {
			f.byID[c.ID.ID] = i
		}
	}
	return f
}

// at returns the container with an ID, which is expected at index i; nil for none.
func (f *finder) at(i int, id string) *Container {
	if i = f.index(i, id); i < 0 {
		return nil
	}
	return f.list[i]
}

// index returns the index of the container with an ID; -1 for none.
func (f *finder) index(i int, id string) int {
	if i < len(f.list) && f.list[i].ID.ID == id {
		return i
	}
	if f.byID != nil {
		if i, ok := f.byID[id]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(f.list, func(c *Container) bool { return c.ID.ID == id })
}

// statusFinder finds the status of a container by its ID, as finder does a container. The
// first of an ID counts.
type statusFinder struct {
	list []*Status
	byID map[string]*Status // nil for a short list
}

func statusFinderIn(list []*Status) statusFinder {
	f := statusFinder{list: list}
	if len(list) > longList {
		f.byID = make(map[string]*Status, len(list))
		for _, s := range slices.Backward(list) {
			f.byID[s.ID.ID] = s
		}
	}
	return f
}

// at returns the status of a container, which is expected at index i; nil for none.
func (f *statusFinder) at(i int, id string) *Status {
	if i < len(f.list) && f.list[i].ID.ID == id {
		return f.list[i]
	}
	if f.byID != nil {
		return f.byID[id]
	}
	for _, s := range f.list {
		if s.ID.ID == id {
			return s
		}
	}
	return nil
}
