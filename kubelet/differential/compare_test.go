package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

// event is an event of either side.
type event struct {
	UID       types.UID
	Type      string
	Container string
}

const podSync = "PodSync"

func (e event) String() string { return fmt.Sprintf("%s %s %s", e.UID, e.Type, e.Container) }

func idOf(data any) string {
	id, _ := data.(string)
	return id
}

// content is what either side's cache has of a pod: every field of a status that
// both have, but for the time stamp, which only the library sets.
type content struct {
	None            bool // there is not even an empty status
	ID              types.UID
	Name, Namespace string
	IPs             []string
	Containers      []string
	Sandboxes       []string
}

// answer is what a reader of either cache was given.
type answer struct {
	content content
	err     error
}

// diff returns how what the kubelet has (-) differs from what is had here (+); no
// distinction is made between no list and an empty one.
func diff(kubelet, here any) string {
	return cmp.Diff(kubelet, here, cmpopts.EquateEmpty(), cmp.AllowUnexported(answer{}), cmpopts.EquateErrors())
}

// byPod sorts events by pod, and those of a pod by container, for between two containers that are known
// there is no order; and sets those of the type PodSync aside.
func byPod(events []event) (ofPod map[types.UID][]event, syncs map[types.UID]bool) {
	ofPod, syncs = make(map[types.UID][]event), make(map[types.UID]bool)
	for _, e := range events {
		if e.Type == podSync {
			syncs[e.UID] = true
		} else {
			ofPod[e.UID] = append(ofPod[e.UID], e)
		}
	}
	for _, events := range ofPod {
		slices.SortStableFunc(events, func(a, b event) int { return strings.Compare(a.Container, b.Container) })
	}
	return ofPod, syncs
}

// sameHealth tells how the answers of Healthy differ. The library's text begins
// as the kubelet's does and goes on with the cause, which is rule 13.
func sameHealth(k *kubeletSide, p *plegSide) error {
	kubeletOK, kubeletErr := k.generator.Healthy()
	ok, err := p.generator.Healthy()
	switch {
	case kubeletOK != ok:
		return fmt.Errorf("healthy: kubelet %v (%w), here %v (%w)", kubeletOK, kubeletErr, ok, err)
	case kubeletErr == nil && err == nil:
		return nil
	case kubeletErr == nil || err == nil || !strings.HasPrefix(err.Error(), kubeletErr.Error()):
		return fmt.Errorf("healthy: kubelet says %q, here it is %q", text(kubeletErr), text(err))
	case len(err.Error()) == len(kubeletErr.Error()):
		return errors.New("healthy: the text does not go on with the cause: " + err.Error())
	default:
		return nil
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
