package kubelet

import (
	"testing"
	"testing/synctest"
)

// deviation is an intended difference between the library and the kubelet's generator.
type deviation struct {
	// rule is what requires the difference: the number of a rule in the contract, or a name in the
	// library's interface.
	rule string
	// kubelet and here describe the behaviour of the kubelet and of the library.
	kubelet, here string
	// show checks the behaviour of both generators.
	show func(t *testing.T, s *stage)
}

// deviations is the complete list of differences between the generators.
var deviations = []deviation{
	{"4", "loses what does not fit into the channel", "delivers it when there is room", showFullChannel},
	{"4", "has one channel, so that one reader takes events from another",
		"has any number of subscribers, who each start from the full present", showSubscribers},
	{"5", "lets an outcome of an older listing take the place of a newer one, and the global time go back",
		"keeps the newer", showOlder},
	{"5", "leaves the time stamp of a status as the runtime left it", "sets it to that of the listing it was asked for",
		showTimeStamp},
	{"6", "wakes a blocked reader of a time that a new reader has to wait beyond", "has one rule of freshness for both",
		showFreshness},
	{"7", "lets the readers of an unchanged pod wait for a reinspection of it", "answers them when the list completes",
		showReaderOfUnchanged},
	{"8", "withholds the events of a pod while its inspection fails", "delivers them at once", showFailureEvents},
	{"8", "has no status while inspections fail", "keeps the last good status beside the error", showFailureStatus},
	{"8", "sends only a PodSync of a pod that is gone before it could be inspected", "delivers its whole life",
		showNeverInspected},
	{"8", "never inspects a pod that is listed without containers, nor forgets one that lost them all",
		"inspects the one and forgets the other", showWithoutContainers},
	{"9", "leaves a pod that a pod list found absent to the next full relist", "removes it at once",
		showAbsence},
	{"9", "wakes the readers of a pod observed to be absent, and lets the next one block", "remembers that it was",
		showAbsenceObserved},
	{"10", "lets a blocked reader wait for the next full relist",
		"lists that one pod at once, if the runtime can", showBlockedReader},
	{"11", "forgets a pod's last addresses when an inspection fails", "keeps them", showAddresses},
	{"12", "stops every pod's events while one inspection hangs", "holds back that pod only", showStuckInspection},
	{"12", "with EventedPLEG, has its hints wait behind that inspection", "has them wait for nothing",
		showHintBesideStuck},
	{"13", "is unhealthy when one inspection hangs", "is healthy", showStuckHealth},
	{"13", "does not say what hangs", "names the call, and since when, or the last error", showHealthText},
	{"14", "panics at an unknown state", "reads it as unknown", showUnknownState},
	{"14", "panics at a nil pod", "skips it", showNilPod},
	{"14", "believes the last of two pods with one UID", "believes the first", showDuplicate},
	{"14", "takes a pod without UID for one with the UID \"\"", "skips it", showNoUID},
	{"16", "learns of a change from the next full relist", "also from the runtime's events, if it has any", showHint},
	{"16", "with EventedPLEG, lists a pod at once when a container has stopped", "at every event", showHintOfStart},
	{"17", "with EventedPLEG, opens the event stream five times", "opens it for ever", showStreamEnds},
	{"18", "with EventedPLEG, skips an event that names no pod", "lists all pods", showHintWithoutPod},
	{"31", "takes the container with the latest creation time for the newest of its name",
		"takes the one with the greatest attempt", showClockSetBack},
	{"LookupNewerThan", "has readers that cannot be cancelled", "has a form with a context", showCancel},
	{"PodSync", "sends no PodSync for a reinspection that found a change",
		"sends one for every reinspection of a known pod", showPodSync},
	{"RequestReinspect", "inspects after the next list that succeeds", "inspects at once", showReinspect},
	{"Start", "goes on with calls that fail when its context has ended", "does what Stop does", showStartContext},
	{"Stop", "leaves the call under way behind", "returns when it has ended", showStop},
	{"metrics", "goes on showing the number of containers in a state in which there are none", "shows zero", showGauges},
}

// TestDeviations checks every deviation on both generators. If a deviation no longer exists, the
// test fails.
func TestDeviations(t *testing.T) {
	for _, d := range deviations {
		t.Run(d.rule+": the kubelet "+d.kubelet+"; pleg "+d.here, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, 1000)
				d.show(t, s)
				s.leave()
			})
		})
	}
}
