package pleg

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// class says how the fingerprint uses a value. Values that matter only in comparison with each
// other are replaced by their ranks.
type class uint8

const (
	plain class = iota
	leftOut
	stampNumber // the number of a stamp
	wantNumber  // the number of a stamp, plus one
	clockTime   // a time that is compared with other times; replaced by its rank
	schedTime   // a due time or a past time; replaced by its distance from now
	notZero     // only whether the value is zero
	classes
)

// classesOf classifies the fields of the reconciler and its parts that the fingerprint does not use
// directly. A new field with a number or a time must be added here.
var classesOf = map[string]class{
	"Scheduler.Now": leftOut, "Scheduler.cfg": leftOut, "Scheduler.alarms": leftOut,
	"Stamp.Number": stampNumber, "Stamp.Time": clockTime,
	"cadence.next": schedTime, "cadence.notBefore": schedTime, "cadence.took": leftOut,
	"Scheduler.FullListsStuckSince": notZero,
	"Scheduler.podsStuckSince":      schedTime, "Scheduler.lastCanary": schedTime,
	"Call.Cause": leftOut, "Call.Began": schedTime,
	"Entry.StuckSince": notZero, "Entry.wants": leftOut, "Entry.toList": leftOut, "Entry.toInspect": leftOut,
	"Entry.wake": leftOut, "Entry.index": leftOut,
	"request.cause": leftOut, "request.newest": wantNumber, "request.oldest": wantNumber,
	"podRecord.overlapTo": stampNumber, "podRecord.listedIn": leftOut, "podRecord.due": schedTime,
	"podRecord.lastInspected": leftOut, "podRecord.failures": notZero,
	"snapshot.change": leftOut, "change.cause": leftOut,
	// The exploration does not check Initial, the statuses of events, or the count of exits.
	"change.initial": leftOut, "update.initial": leftOut, "update.first": leftOut, "update.statuses": leftOut,
	"update.listedAt": leftOut, "update.cause": leftOut, "update.settled": leftOut,
	"end.endedBy": leftOut, "end.since": leftOut, "end.settled": leftOut,
}

type plannedField struct {
	index int
	class class
}

var (
	timeType = reflect.TypeFor[time.Time]()
	podType  = reflect.TypeFor[*Pod]()
	conType  = reflect.TypeFor[*Container]()

	statusType = reflect.TypeFor[*Status]()
)

type token struct {
	class class
	value int64
}

// printer makes the fingerprint of a world. Two worlds with the same fingerprint behave in the same
// way from then on.
type printer struct {
	plans  map[reflect.Type][]plannedField
	tokens []token
	ranks  [classes][]int64
	bytes  []byte
	w      *world
}

type fingerprint [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func newPrinter() *printer {
	return &printer{plans: make(map[reflect.Type][]plannedField)}
}

func (f *printer) put(c class, v int64) { f.tokens = append(f.tokens, token{c, v}) }

func (f *printer) bool(bs ...bool) {
	for _, b := range bs {
		v := int64(0)
		if b {
			v = 1
		}
		f.put(plain, v)
	}
}

// print returns the fingerprint of a world.
func (f *printer) print(w *world) fingerprint {
	f.w, f.tokens = w, f.tokens[:0]
	r := w.r
	f.value(reflect.ValueOf(r.sched).Elem(), plain)
	for _, uid := range sortedKeys(r.records.byUID) {
		f.value(reflect.ValueOf(r.records.byUID[uid]).Elem(), plain)
		rec := r.records.byUID[uid]
		f.bool(rec.inspecting != nil && rec.inspecting.change == rec.change)
	}
	f.value(reflect.ValueOf(&r.records.full).Elem(), plain)
	for _, id := range slices.Sorted(maps.Keys(r.records.earlyExits)) {
		f.put(plain, int64(maphash.String(seeds[0], id)))
		f.bool(r.sched.Now.Sub(r.records.earlyExits[id].at) > explorePeriod)
	}
	f.value(reflect.ValueOf(&r.all).Elem(), plain)
	f.bool(r.firstFull.Number > 0, r.synced)
	f.present(reflect.ValueOf(r.updates).Elem().FieldByName("present"))
	f.relists()
	f.cache()
	f.world()
	return f.hash()
}

// present prints the newest updates as a new subscriber would be sent them.
func (f *printer) present(byUID reflect.Value) {
	f.put(plain, int64(byUID.Len()))
	for p := range f.w.scope.pods {
		uid := podUID(p)
		u := byUID.MapIndex(reflect.ValueOf(uid))
		f.bool(u.IsValid())
		if u.IsValid() {
			f.value(reflect.ValueOf(updateRules{}.Initial((*update)(u.UnsafePointer()))).Elem(), plain)
		}
	}
}

func (f *printer) relists() {
	r := f.w.r
	for _, list := range [...][]*relistCaller{r.relists.waiting, r.relists.attached, f.w.in.relists} {
		f.put(plain, int64(len(list)))
		for _, c := range list {
			f.caller(c)
		}
	}
	f.put(plain, int64(len(r.relists.incomplete)))
	for _, a := range r.relists.incomplete {
		f.put(stampNumber, int64(a.stamp.Number))
		for _, c := range a.callers {
			f.caller(c)
		}
		f.bool(a.awaited != nil) // it does not matter which pod is awaited
	}
}

func (f *printer) caller(c *relistCaller) {
	is := func(o *exploredCaller) bool { return o.relistCaller == c }
	f.put(plain, int64(slices.IndexFunc(f.w.callers, is)))
}

func (f *printer) cache() {
	c := f.w.pods
	f.put(clockTime, nanos(c.global))
	for p := range f.w.scope.pods {
		uid := podUID(p)
		e := c.entries[uid]
		f.bool(e != nil)
		if e != nil {
			f.bool(e.status != nil, e.err != nil, e.listed != nil, e.held)
			if e.status != nil {
				f.levels(shownBy(e.status))
				f.bool(e.status.Name == lies)
			}
			f.put(clockTime, nanos(e.stored))
			f.put(clockTime, nanos(e.observed))
		}
	}
}

func (f *printer) levels(ls ...levels) {
	for _, l := range ls {
		f.put(plain, int64(l[0])<<2|int64(l[1]))
	}
}

// world prints the state of the world outside the reconciler.
func (f *printer) world() {
	w := f.w
	f.levels(w.truth[:]...)
	f.levels(w.seen[:]...)
	f.levels(w.gone[:]...)
	b := w.left
	for _, n := range [...]int8{
		b.changes, b.hints, b.lists, b.requests, b.readers, b.laters, b.reinspects, b.relists, b.faults, b.ticks,
		b.stops, b.subscribers, b.batches, b.connects, b.exits,
	} {
		f.put(plain, int64(n))
	}
	f.bool(w.running, w.in.periodic != nil)
	f.put(clockTime, nanos(w.clock))
	f.put(clockTime, nanos(w.r.sched.Last.Time))
	f.put(stampNumber, int64(w.fullOK))
	f.put(stampNumber, int64(w.fullBad))
	f.bool(w.hinted[:]...)
	f.bool(w.syncs[:]...)
	for p := range w.ended {
		f.bool(w.ended[p][:]...)
	}
	for _, r := range w.readers {
		f.bool(r.blockedReader != nil, r.later)
		if r.blockedReader != nil {
			f.put(clockTime, nanos(r.minTime))
		}
	}
	for _, s := range w.follow {
		f.levels(s.sent[:]...)
	}
	for _, c := range w.callers {
		f.bool(c.returned)
		if !c.returned {
			f.levels(c.at[:]...)
			f.put(stampNumber, int64(c.called))
			f.put(stampNumber, int64(c.list))
			f.bool(c.inspected[:]...)
		}
	}
	slices.SortFunc(w.flights, compareFlights)
	for _, fl := range w.flights {
		f.put(plain, int64(fl.call.Kind)<<8|int64(len(fl.call.UID)))
		f.levels(fl.began[:]...)
		f.bool(fl.cancelled, fl.stopped, fl.call.Slow, fl.call.TimedOut)
		if fl.pod != nil {
			f.thing(reflect.ValueOf(fl.pod))
		}
	}
	f.pending()
}

func compareFlights(a, b *flight) int {
	return cmp.Or(cmp.Compare(a.call.Kind, b.call.Kind), cmp.Compare(a.call.UID, b.call.UID))
}

// pending prints the inputs of the next step.
func (f *printer) pending() {
	w := f.w
	for i, a := range w.answered {
		f.put(plain, int64(a.kind)<<8|int64(a.pod))
		f.levels(a.read[:]...)
		f.bool(a.ok, a.dead, a.lies, w.in.results[i].stopped)
		f.put(stampNumber, int64(w.in.results[i].call.Stamp.Number))
	}
	f.keys(slices.Sorted(maps.Keys(w.in.requests)))
	f.keys(slices.Sorted(maps.Keys(w.in.reinspects)))
	f.keys(slices.Sorted(maps.Keys(w.in.hints)))
	for _, e := range w.in.exits {
		f.put(plain, int64(maphash.String(seeds[0], e.ContainerID)))
	}
}

func (f *printer) keys(uids []types.UID) {
	f.put(plain, int64(len(uids)))
	for _, uid := range uids {
		f.put(plain, int64((uid + "-")[0])) // the empty UID stands for all
	}
}

func (f *printer) value(v reflect.Value, c class) {
	switch v.Kind() {
	case reflect.Bool:
		f.bool(v.Bool())
	case reflect.Int, reflect.Int64:
		f.number(v.Int(), c)
	case reflect.Uint64:
		f.number(int64(v.Uint()), c)
	case reflect.String:
		f.put(plain, int64(maphash.String(seeds[0], v.String())))
	case reflect.Struct:
		if v.Type() == timeType {
			f.time(v, c)
			return
		}
		if v.Type().Name() == "queue" {
			f.queue(v)
			return
		}
		for _, field := range f.plan(v.Type()) {
			f.value(v.Field(field.index), field.class)
		}
	case reflect.Pointer:
		f.pointer(v)
	case reflect.Map:
		f.mapping(v)
	case reflect.Slice, reflect.Array:
		f.put(plain, int64(v.Len()))
		for i := range v.Len() {
			f.value(v.Index(i), c)
		}
	default:
		panic("not known how to print a " + v.Type().String())
	}
}

func (f *printer) number(n int64, c class) {
	switch c {
	case notZero:
		f.bool(n != 0)
	case wantNumber:
		f.bool(n != 0)
		f.put(stampNumber, max(n-1, 0))
	default:
		f.put(c, n)
	}
}

// time prints a time relative to now, in steps of a millisecond. All times long past are equal.
func (f *printer) time(v reflect.Value, c class) {
	ns := nanos(*(*time.Time)(v.Addr().UnsafePointer()))
	switch c {
	case notZero:
		f.bool(ns != 0)
	case schedTime:
		switch {
		case ns == 0:
			f.put(plain, -1)
		default:
			const grain = int64(time.Millisecond)
			ahead := ns - nanos(f.w.r.sched.Now)
			f.put(plain, max(ahead+grain-1, -9*int64(explorePeriod))/grain)
		}
	case clockTime:
		f.put(c, ns)
	default:
		panic("a time that is not classified")
	}
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func (f *printer) pointer(v reflect.Value) {
	f.bool(v.IsNil())
	if v.IsNil() {
		return
	}
	switch v.Type() {
	case podType:
		f.thing(v)
	case conType:
		f.value(v.Elem().FieldByName("ID").FieldByName("ID"), plain)
	case statusType:
		for _, field := range [...]string{"ID", "State", "Unconfirmed", "EndUnknown"} {
			f.value(v.Elem().FieldByName(field), plain)
		}
	default:
		f.value(v.Elem(), plain)
	}
}

// thing prints a pod.
func (f *printer) thing(v reflect.Value) {
	pod := (*Pod)(v.UnsafePointer())
	f.put(plain, int64(levelsOf(pod).key(podIndex(pod.ID))))
}

func (f *printer) mapping(v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	f.put(plain, int64(len(keys)))
	for _, key := range keys {
		f.put(plain, int64(maphash.String(seeds[0], key.String())))
		f.value(v.MapIndex(key), plain)
	}
}

// queue prints the queued pods in their order.
func (f *printer) queue(v reflect.Value) {
	place := v.FieldByName("List").FieldByName("root")
	for range v.FieldByName("List").FieldByName("len").Int() {
		place = place.FieldByName("next").Elem()
		f.value(place.FieldByName("Value").Elem().Elem().FieldByName("UID"), plain)
	}
	f.put(plain, -2)
}

func (f *printer) plan(t reflect.Type) []plannedField {
	if plan, ok := f.plans[t]; ok {
		return plan
	}
	plan := []plannedField{}
	for i := range t.NumField() {
		field := t.Field(i)
		c, known := classesOf[t.Name()+"."+field.Name]
		if !known && (field.Type.Kind() == reflect.Uint64 || field.Type == timeType) {
			panic(t.Name() + "." + field.Name + " is not classified")
		}
		if c != leftOut {
			plan = append(plan, plannedField{i, c})
		}
	}
	f.plans[t] = plan
	return plan
}

// hash replaces values that matter only in comparison with each other by their ranks. It then adds
// the truth at each remaining stamp and time, and hashes the result.
func (f *printer) hash() fingerprint {
	for c := range f.ranks {
		f.ranks[c] = f.ranks[c][:0]
	}
	for _, t := range f.tokens {
		if t.class != plain {
			f.ranks[t.class] = append(f.ranks[t.class], t.value)
		}
	}
	for c := range f.ranks {
		slices.Sort(f.ranks[c])
		f.ranks[c] = slices.Compact(f.ranks[c])
	}
	f.bytes = f.bytes[:0]
	for _, t := range f.tokens {
		v := t.value
		if t.class != plain {
			rank, _ := slices.BinarySearch(f.ranks[t.class], v)
			v = int64(rank)
		}
		f.bytes = binary.LittleEndian.AppendUint64(f.bytes, uint64(v))
	}
	for _, n := range f.ranks[stampNumber] {
		f.truth(f.w.stamped[uint64(n)])
	}
	for _, ns := range f.ranks[clockTime] {
		at, _ := f.w.trueAt(time.Unix(0, ns))
		f.truth(at)
	}
	return fingerprint{maphash.Bytes(seeds[0], f.bytes), maphash.Bytes(seeds[1], f.bytes)}
}

func (f *printer) truth(tr truth) {
	for _, l := range tr {
		f.bytes = append(f.bytes, byte(l[0])<<2|byte(l[1]))
	}
}
