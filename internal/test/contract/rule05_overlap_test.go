package contract_test

import (
	"testing"

	"github.com/kubepleg/pleg"
)

// Rule 5: of two statuses, the cache keeps the status with the newer stamp.
func TestRule5OlderNeverReplacesNewer(t *testing.T) {
	c := pleg.NewCache()
	if !c.Set("a", status("a", "new"), nil, at(2)) {
		t.Error("the first status was not stored")
	}
	if c.Set("a", status("a", "old"), nil, at(1)) {
		t.Error("an older status was stored")
	}
	if s, _ := c.Get("a"); s.Name != "new" {
		t.Errorf("the cache has the %s status", s.Name)
	}
	if !c.Set("a", status("a", "same time"), nil, at(2)) {
		t.Error("a status of the same stamp was not stored")
	}
}
