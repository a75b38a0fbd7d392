package browser_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/kubepleg/pleg/plegwatch/e2e/browser"
)

// If the runtime answers no calls, the page says so in its sentence. It draws one bar across all
// lanes, not a bar in each lane.
func TestRuntimeAwayIsOneBar(t *testing.T) {
	n, tab := open(t, nil)
	for i := range 3 {
		run(t, n, fmt.Sprint("web-", i))
	}
	const none = `document.getElementById('away').hidden`
	await(t, tab, `document.querySelectorAll('.lane:not([hidden])').length === 3 && `+none)
	n.Freeze()
	await(t, tab, `/^Degraded: nothing has been answered since .*: restart the runtime\.$/.test(`+
		`document.getElementById('sentence').innerText)`)
	await(t, tab, `!document.getElementById('away').hidden && `+
		`document.getElementById('away').innerText.startsWith('runtime: no answer since ') && `+
		`document.getElementById('away-band').getBoundingClientRect().width > 3 && `+
		`!document.querySelector('.hang:not([style*="display"]):not(#legend *)')`)
	n.Thaw()
	await(t, tab, `document.getElementById('sentence').innerText.startsWith('Healthy') && `+none)
	// After the recovery, the strip of conditions still shows the past problem.
	await(t, tab, `!document.getElementById('conditions').hidden && document.querySelector('#conditions i.warning').title`+
		`.includes('nothing has been answered')`)
}

// With many pods, each row is 22 pixels high, unless the user chooses another height. The address
// stores the choice. In print, all pods are drawn.
func TestCompactRows(t *testing.T) {
	n, tab := open(t, nil)
	for i := range 60 {
		run(t, n, fmt.Sprintf("worker-%04d", i))
	}
	const height = `document.querySelector('.lane:not([hidden])').getBoundingClientRect().height`
	await(t, tab, `document.querySelectorAll('.lane:not([hidden])').length > 5 && `+height+` === 22`)
	choose := func(rows string) {
		evaluate[any](t, tab, fmt.Sprintf(`(() => { const s = document.getElementById('rows'); s.value = %q; `+
			`s.dispatchEvent(new Event('change')); })()`, rows))
	}
	choose("full")
	await(t, tab, height+` > 22 && location.hash === '#rows=full'`)
	choose("auto")
	await(t, tab, height+` === 22 && location.hash === ''`)
	medium := func(media string) {
		t.Helper()
		err := chromedp.Do(tab, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
			_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media})
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
	shown := evaluate[int](t, tab, `document.querySelectorAll('.lane:not([hidden])').length`)
	if shown >= 60 {
		t.Errorf("%d lanes are in view", shown)
	}
	medium("print")
	await(t, tab, `document.querySelectorAll('.lane:not([hidden])').length === 60`)
	medium("")
	await(t, tab, fmt.Sprintf(`document.querySelectorAll('.lane:not([hidden])').length === %d`, shown))
}

// In pages of any width, no text in a lane overlaps another text.
func TestLabelsDoNotOverlap(t *testing.T) {
	n, err := browser.StartNode(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	id := run(t, n, "crash-loop-with-a-long-name-x7k2p")
	hangs := run(t, n, "hangs-with-a-long-name-0")
	for _, width := range []int64{1400, 700, 390} {
		tab, closeTab, err := browser.Open(t.Context(), browser.Window{Width: width, Height: 900}, n.Page.URL)
		if err != nil {
			t.Fatal(err)
		}
		await(t, tab, lane("crash-loop-with-a-long-name-x7k2p")+` !== ''`)
		for i := range 12 {
			if err := n.ExitContainer(id, i%3*100, "OOMKilled"); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			await(t, tab, `document.querySelector('.lane:not([hidden]) .bar:not(.running)')`+` !== null`)
			if id, err = n.RestartContainer(id); err != nil {
				t.Fatal(err)
			}
			overlap(t, tab, width)
		}
		heal := n.Block("ContainerStatus", hangs)
		if err := n.ExitContainer(hangs, 137, "OOMKilled"); err != nil {
			t.Fatal(err)
		}
		await(t, tab, lane("hangs-with-a-long-name-0")+`.includes('stuck')`)
		overlap(t, tab, width)
		heal()
		if hangs, err = n.RestartContainer(hangs); err != nil {
			t.Fatal(err)
		}
		closeTab()
	}
}

// overlap fails the test if two texts in a lane overlap.
func overlap(t *testing.T, tab context.Context, width int64) {
	t.Helper()
	found := evaluate[string](t, tab, `(() => {
		for (const lane of document.querySelectorAll('.lane:not([hidden])')) {
			const boxes = [...lane.querySelectorAll('.track > div, .who > *, .names > div')]
				.filter((e) => e.textContent && e.offsetParent)
				.map((e) => {
					const range = document.createRange();
					range.selectNodeContents(e);
					const own = e.getBoundingClientRect();
					const { left, right, top, bottom } = range.getBoundingClientRect();
					return { text: e.textContent, left: Math.max(left, own.left), right: Math.min(right, own.right), top, bottom };
				});
			for (const [i, a] of boxes.entries()) for (const b of boxes.slice(i + 1)) {
				const across = a.left + 1 < b.right && b.left + 1 < a.right;
				if (across && a.top + 4 < b.bottom && b.top + 4 < a.bottom) return a.text + ' | ' + b.text;
			}
		}
		return '';
	})()`)
	if found != "" {
		t.Errorf("%d pixels wide: %s", width, found)
	}
}

// A pod's detail offers commands to copy, with full IDs and the endpoint. It shows each restart in
// one line.
func TestCommandsToCopy(t *testing.T) {
	n, tab := open(t, nil)
	id := run(t, n, "web-0")
	await(t, tab, lane("web-0")+`.includes('running')`)
	if err := n.ExitContainer(id, 3, "Error"); err != nil {
		t.Fatal(err)
	}
	await(t, tab, lane("web-0")+`.includes('✕ 3')`)
	successor, err := n.RestartContainer(id)
	if err != nil {
		t.Fatal(err)
	}
	await(t, tab, lane("web-0")+`.includes('running')`)
	evaluate[any](t, tab, `document.querySelector('.lane').click()`)
	await(t, tab, fmt.Sprintf(`document.getElementById('detail').innerText.includes(%q)`,
		"crictl --runtime-endpoint "+n.Endpoint()+" inspect "+successor))
	await(t, tab, `/restart 0|exited 3 Error, ran for/.test(document.getElementById('detail').innerText) && `+
		`document.querySelectorAll('#detail h3').length < 5`)
	copied := evaluate[string](t, tab, `(() => { let text = ''; `+
		`const clipboard = { writeText: (s) => { text = s; return Promise.resolve(); } }; `+
		`Object.defineProperty(navigator, 'clipboard', { value: clipboard }); `+
		`document.querySelector('#detail button.copy').click(); return text; })()`)
	if !strings.HasSuffix(copied, " inspect "+successor) {
		t.Errorf("copied: %q", copied)
	}
	await(t, tab, `document.querySelector('#detail button.copy').innerText === 'Copied'`)
}

// The page shows the node, the agent, links to the agent's other paths, and how the agent learns of
// exits.
func TestNodeComesFirst(t *testing.T) {
	_, tab := open(t, nil)
	await(t, tab, `/^node-7\s*plegwatch v0.1.0\s*started .* ago\s*Text JSON \/metrics \/healthz$/.test(`+
		`document.getElementById('node').innerText.trim())`)
	await(t, tab, `document.title === '✓ node-7: Healthy · pleg' && `+
		`document.querySelector('#node a[href="/metrics"]') !== null`)
	await(t, tab, `/events\s+active[^]*shim\s+not active/.test(document.getElementById('witnesses').innerText)`)
}

// The time axis covers what recently happened to the pods. The restarts of a container are folded
// into one line of events.
func TestFitAndFold(t *testing.T) {
	_, tab := open(t, nil)
	const minute = 60_000
	for want, begun := range map[int][]int{
		15 * minute: {3600}, // the only container started an hour ago
		minute / 2:  {3600, 20}, 2 * minute: {3600, 100, 20}, 10 * minute: {3600, 480},
	} {
		got := evaluate[int](t, tab, fmt.Sprintf(`(() => { const now = 1e12; const pods = [%s].map((s) => `+
			`({ containers: [{ created: now - s * 1000 }], sandboxes: [] })); `+
			`return PLEGZ.fit({ time: now, conditions: [] }, pods); })()`,
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(begun)), ","), "[]")))
		if got != want {
			t.Errorf("%v: %d, want %d", begun, got, want)
		}
	}
	lines := evaluate[string](t, tab, `(() => {
		let number = 0;
		const e = (event, container, more) => ({
			number: ++number, time: new Date(1e12 + number * 1000).toISOString(), event, container,
			podUID: 'a', namespace: 'shop', pod: 'a', ...more,
		});
		const events = [e('ContainerStarted', 'x')];
		for (let i = 1; i <= 3; i++) {
			events.push(e('ContainerDied', 'x', { exitCode: 2, reason: 'Error', restartCount: i - 1 }),
				e('ContainerStarted', 'y', { podUID: 'b', pod: 'b' }), e('ContainerStarted', 'x', { restartCount: i }));
		}
		events.push(e('ContainerDied', 'x', { exitCode: 0, restartCount: 3 }));
		return PLEGZ.fold(events, 10).map((l) => PLEGZ.lineText(l)).map((l) => l.pod + ' ' + l.text).join('\n');
	})()`)
	const want = "shop/a x exited 0\nshop/a x exited 2 Error, restarted 3 times (restart 3)\n" +
		"shop/b y started\nshop/b y started\nshop/b y started\nshop/a x started"
	if lines != want {
		t.Errorf("%s\nwant %s", lines, want)
	}
}
