package mixin_test

import "testing"

// No two panels share an ID or a position. Grafana accepts such panels, but draws them wrongly.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	ids := make(map[int]string)
	spots := make(map[[2]int]string)
	for _, p := range d.Panels {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("%q and %q have the ID %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		if p.GridPos.W <= 0 || p.GridPos.H <= 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q is not on the grid", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				spot := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, taken := spots[spot]; taken {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				spots[spot] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d (%q) lacks a title, a description or queries", p.ID, p.Title)
		}
		if p.Datasource.UID != "${datasource}" {
			t.Errorf("%q has the data source %q", p.Title, p.Datasource.UID)
		}
	}
}
