package inbox_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/kubepleg/pleg/internal/core/inbox"
)

// letters is the content of a test's inbox. Like a real loop's content, it has a list and a set.
type letters struct {
	list []int
	set  map[int]struct{}
}

func put(b *inbox.Inbox[letters], n int) {
	b.Put(func(l *letters) {
		l.list = append(l.list, n)
		if l.set == nil {
			l.set = make(map[int]struct{})
		}
		l.set[n] = struct{}{}
	})
}

func awake(b *inbox.Inbox[letters]) bool {
	select {
	case <-b.Wake():
		return true
	default:
		return false
	}
}

func TestTakeReturnsWhatWasPut(t *testing.T) {
	b := inbox.New[letters]()
	for round := range 5 {
		if mine := b.Take(); len(mine.list) != 0 || len(mine.set) != 0 {
			t.Fatalf("round %d begins with %v", round, mine)
		}
		put(b, round)
		put(b, 7)
		if mine := b.Take(); !slices.Equal(mine.list, []int{round, 7}) || len(mine.set) != 2 {
			t.Errorf("round %d: got %v", round, mine)
		}
	}
}

func TestOneTokenForAnyNumberOfChanges(t *testing.T) {
	b := inbox.New[letters]()
	if awake(b) {
		t.Error("there is a token before anything was put")
	}
	for n := range 3 {
		put(b, n)
	}
	if !awake(b) {
		t.Error("there is no token")
	}
	if awake(b) {
		t.Error("there is a second token")
	}
	put(b, 3)
	if !awake(b) {
		t.Error("there is no token for what was put after the first was read")
	}
}

// If the function that Put calls panics, other senders can still use the inbox.
func TestPutSurvivesAPanickingChange(t *testing.T) {
	b := inbox.New[letters]()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		b.Put(func(*letters) { panic("a bad change") })
	}()
	put(b, 1)
	if mine := b.Take(); !slices.Equal(mine.list, []int{1}) {
		t.Errorf("got %v", mine)
	}
}

// With many senders, every input is taken exactly once, even though the loop sleeps whenever there
// is no token.
func TestManySenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders, each = 8, 200
		b := inbox.New[letters]()
		for s := range senders {
			go func() {
				for n := range each {
					put(b, s*each+n)
				}
			}()
		}
		var got []int
		for len(got) < senders*each {
			<-b.Wake()
			got = append(got, b.Take().list...)
		}
		slices.Sort(got)
		for want, n := range got {
			if n != want {
				t.Fatalf("got %d where %d was due", n, want)
			}
		}
	})
}
