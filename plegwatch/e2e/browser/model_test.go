package browser_test

import "testing"

// The page draws a pod in a time proportional to its number of containers.
func TestLargePodIsDrawn(t *testing.T) {
	_, tab := open(t, nil)
	// Count how often the page reads a container's name.
	looks := evaluate[int](t, tab, `(() => {
		const model = PLEGZ.newModel();
		const containers = Array.from({ length: 1000 }, (_, i) => ({ id: 'id-' + i, name: 'name-' + i, state: 'running' }));
		const pods = [{ uid: 'a', name: 'a', containers }];
		PLEGZ.apply(model, { full: true, goneThrough: 0, pods, events: [], samples: [] });
		const pod = model.pods.get('a');
		let looks = 0;
		pod.containers.forEach((c, i) => Object.defineProperty(c, 'name', { get: () => { looks++; return 'name-' + i; } }));
		if (PLEGZ.bars(pod, 0, 1000, 800).bars.length !== 1000) return -1;
		return looks;
	})()`)
	if looks < 0 || looks > 10_000 {
		t.Errorf("%d looks at the names of 1000 containers", looks)
	}
}

// If the node has already forgotten a container when the page receives it, the container gets no
// row.
func TestForgottenContainerHasNoRow(t *testing.T) {
	n, tab := open(t, nil)
	run(t, n, "web-0")
	await(t, tab, lane("web-0")+`.includes('running')`)
	evaluate[bool](t, tab, `(() => {
		const [uid] = model.pods.keys();
		const now = new Date(model.time).toISOString();
		const containers = [
			{ id: 'new', name: 'new', state: 'running' }, { id: 'old', name: 'old', state: 'removed', gone: 3 },
		];
		const pods = [{ uid, namespace: 'shop', name: 'web-1', state: 'running', containers }];
		PLEGZ.apply(model, {
			time: now, recordingSince: now, position: model.position, goneThrough: 5, pods, events: [], samples: [],
		});
		draw();
		return true;
	})()`)
	await(t, tab, lane("web-1")+`.includes('running')`)
	rows := evaluate[string](t, tab,
		`[...document.querySelectorAll('.lane:not([hidden]) .names div')].map((n) => n.innerText).join()`)
	if rows != "new" {
		t.Errorf("rows: %s", rows)
	}
}
