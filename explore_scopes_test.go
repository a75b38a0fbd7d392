package pleg

var (
	oneRunning = truth{{levelRunning}}
	bothRun    = truth{{levelRunning}, {levelRunning}}
)

// exploredScopes returns small scopes. TestExplore tries the possible actions in every order.
func exploredScopes() []scope {
	one := scope{pods: 1, containers: 2, getter: true, workers: 2, flows: true}
	two := scope{pods: 2, containers: 1, getter: true, workers: 2, flows: true}
	with := func(sc scope, name string, b budget, changes ...func(*scope)) scope {
		sc.name, sc.budget = name, b
		sc.budget.exits = max(1, b.exits)
		for _, change := range changes {
			change(&sc)
		}
		return sc
	}
	stands := func(sc *scope) { sc.flows = false }
	running := func(sc *scope) { sc.start = bothRun }
	exited := func(sc *scope) { sc.start = truth{{levelExited}, {levelExited}} }
	noGetter := func(sc *scope) { sc.getter = false }
	oneWorker := func(sc *scope) { sc.workers = 1 }
	listedOnly := func(sc *scope) { sc.listedOnly = true }
	cold := func(sc *scope) { sc.cold = true }
	unknown := func(sc *scope) { sc.unknown = true }
	return []scope{
		with(one, "a1 hint", budget{changes: 2, hints: 1, lists: 1, ticks: 1}),
		with(one, "a2 request and list", budget{changes: 3, requests: 1, lists: 2}, running),
		with(one, "a3 fault", budget{changes: 2, requests: 1, lists: 1, faults: 1}, running),
		with(one, "a4 Relist, reinspect", budget{changes: 3, relists: 1, reinspects: 1, requests: 1}, running),
		with(one, "a5 reader, clock stands", budget{changes: 2, readers: 1, lists: 1, ticks: 1}, running, stands),
		with(one, "a6 slow and dead", budget{changes: 2, requests: 1, lists: 1, ticks: 2}, running),
		with(one, "a8 stop", budget{changes: 2, requests: 1, stops: 1, reinspects: 1, lists: 1}, running),
		with(one, "a9 gone and back", budget{changes: 3, requests: 2, lists: 1}, exited),
		with(one, "b1 listed only", budget{changes: 3, requests: 1, lists: 1, reinspects: 1}, running, listedOnly),
		with(one, "b2 no getter", budget{changes: 3, hints: 1, relists: 1, lists: 1, faults: 1},
			running, noGetter),
		with(one, "b3 no getter, reader", budget{changes: 2, readers: 1, ticks: 2, reinspects: 1},
			running, noGetter),
		with(one, "b5 together", budget{changes: 2, requests: 1, lists: 2, batches: 2}, running),
		with(one, "b6 Relist, faults", budget{changes: 1, relists: 1, faults: 2, reinspects: 1}, running),
		with(one, "b7 cold", budget{changes: 2, requests: 1, relists: 1, subscribers: 1}, running, cold),
		with(one, "b8 Relist, slow", budget{changes: 1, relists: 1, ticks: 2, requests: 1}, running),
		with(one, "b9 stop, Relist", budget{changes: 1, stops: 1, relists: 1, hints: 1, faults: 1}, running),
		with(two, "c1 two pods", budget{changes: 2, requests: 1, lists: 1}, running),
		with(two, "c2 one worker", budget{changes: 2, relists: 1, lists: 1, faults: 1}, running, oneWorker),
		with(two, "c3 one worker, slow", budget{changes: 2, lists: 1, ticks: 2}, running, oneWorker),
		with(two, "c5 no getter", budget{changes: 2, hints: 1, lists: 1, relists: 1}, running, noGetter),
		with(one, "d1 later reader", budget{changes: 2, laters: 1, readers: 1, ticks: 2}, running),
		with(one, "d2 stream and reader", budget{changes: 2, connects: 1, readers: 1, ticks: 2}, running),
		with(one, "d4 requests and reader", budget{changes: 2, requests: 2, readers: 1}, running),
		with(one, "d5 contradiction", budget{changes: 3, reinspects: 1, lists: 1}, running),
		with(two, "d3 together", budget{changes: 2, requests: 1, lists: 1, batches: 2}, running, oneWorker),
		with(two, "c6 stream", budget{changes: 2, connects: 2, hints: 1}, running),
		with(one, "e1 exits", budget{changes: 3, exits: 3, requests: 1}, running),
		with(one, "e2 exits before the list", budget{changes: 3, exits: 2, hints: 1}),
		with(one, "e3 exits, ends unknown", budget{changes: 3, exits: 2, reinspects: 1}, running, unknown),
	}
}

// walkedScopes returns the scopes of the random walks.
func walkedScopes() []scope {
	much := budget{
		changes: 8, hints: 4, lists: 4, requests: 4, readers: 4, laters: 2, reinspects: 3, relists: 3, faults: 4,
		ticks: 8, stops: 2, subscribers: 1, batches: 6, connects: 2, exits: 6,
	}
	one := scope{pods: 1, containers: 2, getter: true, workers: 2, flows: true, start: oneRunning, budget: much}
	two := one
	two.pods = 2
	var scopes []scope
	for _, base := range []scope{one, two} {
		for i := range 8 {
			sc := base
			sc.name = "one"
			if sc.pods == 2 {
				sc.name = "two"
			}
			if i&1 != 0 {
				sc.getter = false
				sc.name += ", no getter"
			}
			if i&2 != 0 {
				sc.flows = false
				sc.name += ", clock stands"
			}
			if i&4 != 0 {
				sc.listedOnly, sc.workers = true, 1
				sc.name += ", one worker"
			}
			scopes = append(scopes, sc)
		}
	}
	return scopes
}
