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

// event is an event of the kubelet's or the library's generator.
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

// content is the status of a pod in the kubelet's or the library's cache. It contains every field
// that both caches know, except the time stamp, which only the library sets.
type content struct {
	None            bool // true if the status is nil
	ID              types.UID
	Name, Namespace string
	IPs             []string
	Containers      []string
	Sandboxes       []string
}

// answer is the answer of the kubelet's or the library's cache to a reader.
type answer struct {
	content content
	err     error
}

// diff returns the differences between the kubelet (-) and the library (+). A nil list equals an
// empty list.
func diff(kubelet, here any) string {
	return cmp.Diff(kubelet, here, cmpopts.EquateEmpty(), cmp.AllowUnexported(answer{}), cmpopts.EquateErrors())
}

// byPod groups events by pod. It sorts each group by container, because the order between
// containers is not compared. It returns the pods of PodSync events separately.
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

// sameHealth returns an error if the answers of Healthy differ. The library's text must begin with
// the kubelet's text and add the cause (rule 13).
func sameHealth(k *kubeletSide, p *plegSide) error {
	kubeletOK, kubeletErr := k.generator.Healthy()
	ok, err := p.generator.Healthy()
	switch {
	case kubeletOK != ok:
		return fmt.Errorf("healthy: kubelet %v (%w), here %v (%w)", kubeletOK, kubeletErr, ok, err)
	case kubeletErr == nil && err == nil:
		return nil
	case kubeletErr == nil || err == nil || !strings.HasPrefix(err.Error(), kubeletErr.Error()):
		return fmt.Errorf("healthy: the kubelet's error is %q, here it is %q", text(kubeletErr), text(err))
	case len(err.Error()) == len(kubeletErr.Error()):
		return errors.New("healthy: the text does not have the cause: " + err.Error())
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
