// The lanes of the pods on the time axis.

const lanes = $('lanes');
const space = $('space');
const pool = []; // elements of lanes in view

// size is of the tracks, read when it changes: to read it has the browser lay out the page.
let size = { left: 0, width: 0, height: 0 };
let scrolled = 0; // of the lanes; to read it would have the browser lay out the page too

function measure() {
  const left = isNarrow.matches ? 0 : parseFloat(getComputedStyle(space).getPropertyValue('--left'));
  size = { left, width: Math.max(1, space.clientWidth - left - 2), height: lanes.clientHeight };
  scrolled = lanes.scrollTop;
}

function drawPods() {
  if (!model.time) return;
  if (!size.height) measure();
  const span = filter.window === 'auto' ? P.autoWindow(model) : Number(filter.window);
  const to = model.time;
  const from = to - span;
  pods = P.list(model, filter, from);
  tops = P.layout(pods);
  space.style.height = tops[pods.length] + 'px';
  $('none').hidden = pods.length > 0;
  setText($('none'), model.pods.size ? 'No pod fits the filter.' : 'There are no pods.');
  drawLanes(from, to);
}

function drawLanes(from, to) {
  drawLanes.again = () => drawLanes(from, to);
  const { left, width, height } = size;
  drawAxis(from, to, width, left);
  const [first, end] = P.visible(tops, scrolled, height);
  inView = new Set(pods.slice(first, end).map((p) => p.uid));
  for (let i = first; i < end; i++) drawLane(laneAt(i - first), i, from, to, width);
  for (let i = end - first; i < pool.length; i++) pool[i].root.hidden = true;
  if (!pods.some((p) => p.uid === chosen)) chosen = '';
  if (chosen) lanes.setAttribute('aria-activedescendant', 'lane-chosen');
  else lanes.removeAttribute('aria-activedescendant');
}

function laneAt(i) {
  if (!pool[i]) {
    const lane = {
      mark: element('span', { class: 'mark', 'aria-hidden': 'true' }), name: element('bdi'), what: element('span', { class: 'what' }),
      names: element('div', { class: 'names' }), track: element('div', { class: 'track', 'aria-hidden': 'true' }), pieces: [], shown: '',
    };
    lane.namespace = element('span');
    lane.title = element('b', {}, lane.namespace, lane.name);
    lane.root = element('div', { class: 'lane', role: 'option' },
      element('div', { class: 'who' }, lane.mark, lane.title, lane.what), lane.names, lane.track);
    space.append(lane.root);
    pool[i] = lane;
  }
  return pool[i];
}

function drawLane(lane, i, from, to, width) {
  const pod = pods[i];
  const root = lane.root;
  root.hidden = false;
  const top = 'translateY(' + tops[i] + 'px)';
  if (root.style.transform !== top) root.style.transform = top;
  const height = P.laneHeight(pod) + 'px';
  if (root.style.height !== height) root.style.height = height;
  if (lane.pod !== pod) {
    lane.pod = pod;
    root.dataset.uid = pod.uid;
    root.dataset.state = pod.state;
    setText(lane.mark, P.MARKS[pod.state] || '');
    setText(lane.namespace, pod.name ? P.printable(pod.namespace) + '/' : '');
    setText(lane.name, P.printable(pod.name || pod.uid));
    setText(lane.what, pod.state + (pod.restarts ? ' ↻' + pod.restarts : ''));
    root.title = pod.error ? P.printable(pod.error) : '';
    root.setAttribute('aria-label', [pod.title, pod.state, pod.restarts ? pod.restarts + ' restarts' : '',
      ...pod.names.map((n) => P.printable(n) + ' ' + P.stateText(pod.byName.get(n)[0]))].filter(Boolean).join(', '));
    lane.names.classList.toggle('single', pod.names.length < 2);
    lane.names.replaceChildren(...pod.names.map((n) => element('div', {}, element('bdi', {}, P.printable(n)))));
  }
  root.setAttribute('aria-setsize', pods.length);
  root.setAttribute('aria-posinset', i + 1);
  root.setAttribute('aria-selected', String(pod.uid === chosen));
  if (pod.uid === chosen) root.id = 'lane-chosen';
  else root.removeAttribute('id');
  drawTrack(lane, P.bars(pod, from, to, width));
}

// drawTrack puts bars into a track, with the elements that are there.
function drawTrack(lane, drawn) {
  let n = 0;
  const piece = (cls, x, y, width, text, title) => {
    let p = lane.pieces[n];
    if (!p) {
      p = element('div');
      lane.pieces.push(p);
      lane.track.append(p);
    }
    n++;
    if (p.className !== cls) p.className = cls;
    if (p.style.display) p.style.display = '';
    const style = p.style;
    const place = 'translateX(' + x.toFixed(1) + 'px)';
    if (style.transform !== place) style.transform = place;
    const w = width === undefined ? '' : width.toFixed(1) + 'px';
    if (style.width !== w) style.width = w;
    const t = y === undefined ? '' : y + 'px';
    if (style.top !== t) style.top = t;
    setText(p, text);
    if (p.title !== title) p.title = title;
  };
  const row = (i) => P.TITLE + i * P.ROW + 2;
  for (const s of drawn.sandboxes) piece('sandbox', s.x, undefined, s.width, '', 'the pod\'s sandbox');
  for (const b of drawn.bars) {
    piece('bar ' + b.kind + (b.removed ? ' removed' : '') + (b.width < 12 ? ' slim' : '') + (b.ended ? ' ended' : ''), b.x, row(b.row), b.width, b.label, b.title);
  }
  if (drawn.hang) {
    piece('hang', drawn.hang.x, 3, drawn.hang.width, drawn.hang.inside ? drawn.hang.text : '', drawn.hang.text);
    if (!drawn.hang.inside && !isNarrow.matches) piece('hang-text', drawn.hang.x - drawn.hang.text.length * 6.2 - 4, 3, undefined, drawn.hang.text, '');
  }
  for (const e of drawn.ends) piece('end ' + e.kind, e.x, row(e.row), undefined, e.text, '');
  for (; n < lane.pieces.length; n++) lane.pieces[n].style.display = 'none';
}

function drawAxis(from, to, width, left) {
  const ticks = $('ticks');
  const all = [...P.ticks(from, to, width), { x: width, text: 'now ' + P.clock(to), now: true }];
  $('axis').style.paddingLeft = left + 'px';
  while (ticks.childElementCount < all.length) ticks.append(element('span'));
  [...ticks.children].forEach((span, i) => {
    span.hidden = i >= all.length;
    if (span.hidden) return;
    span.className = all[i].now ? 'now' : '';
    span.style.left = all[i].x + 'px';
    setText(span, all[i].text);
  });
}

lanes.addEventListener('scroll', () => {
  scrolled = lanes.scrollTop;
  if (drawLanes.again) requestAnimationFrame(drawLanes.again);
}, { passive: true });
new ResizeObserver(() => {
  measure();
  drawPods();
}).observe(lanes);

lanes.addEventListener('click', (e) => {
  const lane = e.target.closest('.lane');
  if (!lane) return;
  chosen = lane.dataset.uid;
  openDetail(chosen);
});

lanes.addEventListener('keydown', (e) => {
  const at = pods.findIndex((p) => p.uid === chosen);
  const page = Math.max(1, Math.floor(lanes.clientHeight / P.laneHeight(pods[Math.max(0, at)] || { names: [] })));
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: pods.length - 1 }[e.key];
  if (e.key === 'Enter' && chosen) openDetail(chosen);
  else if (to === undefined || !pods.length) return;
  else choose(Math.max(0, Math.min(pods.length - 1, to)));
  e.preventDefault();
});

function choose(i) {
  chosen = pods[i].uid;
  if (tops[i] < lanes.scrollTop) lanes.scrollTop = tops[i];
  else if (tops[i + 1] > lanes.scrollTop + lanes.clientHeight) lanes.scrollTop = tops[i + 1] - lanes.clientHeight;
  scrolled = lanes.scrollTop;
  drawLanes.again();
}
