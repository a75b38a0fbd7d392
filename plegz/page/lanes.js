// The lanes of the pods on the time axis.

const lanes = $('lanes');
const space = $('space');
const pool = []; // elements of lanes in view
const MANY = 50; // with more pods, each has one row, unless chosen otherwise
const MOST_PRINTED = 500; // lanes on paper
let printing = false;

// size is the size of the tracks. It is read when it changes, because reading it makes the browser
// lay out the page.
let size = { left: 0, width: 0, height: 0 };
let scrolled = 0; // scroll position of the lanes; reading it would force a layout too

function measure() {
  const left = isNarrow.matches && !compact ? 0 : parseFloat(getComputedStyle(space).getPropertyValue('--left'));
  size = { left, width: Math.max(1, space.clientWidth - left - 2), height: lanes.clientHeight };
  scrolled = lanes.scrollTop;
}

function drawPods() {
  if (!model.time) return;
  if (!size.height) measure();
  const to = model.time;
  const chosenSpan = filter.window === 'auto' ? 0 : Number(filter.window);
  pods = P.list(model, filter, to - (chosenSpan || P.LONGEST_FIT));
  const dense = filter.rows === 'compact' || filter.rows === 'auto' && pods.length > MANY;
  if (dense !== compact) {
    compact = dense;
    $('pods').classList.toggle('compact', compact);
    measure();
  }
  tops = P.layout(pods, compact);
  const from = to - (chosenSpan || P.fit(model, pods.slice(...inSight())));
  space.style.height = tops[pods.length] + 'px';
  $('none').hidden = pods.length > 0;
  setText($('none'), model.pods.size ? 'No pod fits the filter.' : 'There are no pods.');
  drawConditions(from, to, size.width, size.left);
  drawLanes(from, to);
}

// inSight returns the first visible lane, and the first invisible one after it. On paper all are visible.
function inSight() {
  return printing ? [0, Math.min(pods.length, MOST_PRINTED)] : P.visible(tops, scrolled, size.height);
}

function drawLanes(from, to) {
  drawLanes.again = () => drawLanes(from, to);
  const { left, width } = size;
  drawAxis(from, to, width, left);
  const [first, end] = inSight();
  drawAway(from, to, width, left);
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
      mark: element('span', { class: 'mark' }), name: element('bdi'), what: element('span', { class: 'what' }),
      names: element('div', { class: 'names', 'aria-hidden': 'true' }), track: element('div', { class: 'track', 'aria-hidden': 'true' }), pieces: [], shown: '',
    };
    lane.spoken = element('span', { class: 'hidden' }); // what a screen reader says of the lane
    lane.namespace = element('span', { class: 'namespace' });
    lane.tail = element('bdi', { class: 'tail' });
    lane.title = element('b', {}, element('span', { class: 'head' }, lane.namespace, lane.name), lane.tail);
    lane.root = element('div', { class: 'lane', role: 'option' },
      lane.spoken, element('div', { class: 'who', 'aria-hidden': 'true' }, lane.mark, lane.title, lane.what), lane.names, lane.track);
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
  const height = P.laneHeight(pod, compact) + 'px';
  if (root.style.height !== height) root.style.height = height;
  if (lane.pod !== pod) {
    lane.pod = pod;
    root.dataset.uid = pod.uid;
    root.dataset.state = pod.state;
    setText(lane.mark, P.MARKS[pod.state] || '');
    setText(lane.namespace, pod.name ? P.printable(pod.namespace) + '/' : '');
    const [head, tail] = P.split(P.printable(pod.name || pod.uid));
    setText(lane.name, head);
    setText(lane.tail, tail);
    setText(lane.what, pod.state + (pod.restarts ? ' ↻' + pod.restarts : ''));
    root.title = pod.title + (pod.error ? '\n' + P.printable(pod.error) : '');
    setText(lane.spoken, [pod.title, pod.state, pod.restarts ? pod.restarts + ' restarts' : '',
      ...pod.names.map((n) => P.printable(n) + ' ' + P.stateText(pod.byName.get(n)[0]))].filter(Boolean).join(', '));
    lane.names.classList.toggle('single', pod.names.length < 2);
    lane.names.replaceChildren(...pod.names.map((n) => {
      const [head, tail] = P.split(P.printable(n));
      return element('div', { title: P.printable(n) }, element('bdi', { class: 'head' }, head), tail && element('bdi', { class: 'tail' }, tail));
    }));
  }
  root.setAttribute('aria-setsize', pods.length);
  root.setAttribute('aria-posinset', i + 1);
  root.setAttribute('aria-selected', String(pod.uid === chosen));
  if (pod.uid === chosen) root.id = 'lane-chosen';
  else root.removeAttribute('id');
  drawTrack(lane, P.bars(pod, from, to, width, compact), pod.names.length);
}

// drawTrack puts bars into a track, and reuses its elements.
function drawTrack(lane, drawn, rows) {
  let n = 0;
  const piece = (cls, x, y, width, text, title, height) => {
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
    const h = height === undefined ? '' : height + 'px';
    if (style.height !== h) style.height = h;
    setText(p, text);
    if (p.title !== title) p.title = title;
  };
  for (const s of drawn.sandboxes) piece('sandbox', s.x, undefined, s.width, '', 'the pod\'s sandbox');
  for (const b of drawn.bars) {
    const { y, height } = P.place(b.row, rows, compact);
    piece('bar ' + b.kind + (b.removed ? ' removed' : '') + (b.width < 12 ? ' slim' : '') + (b.ended ? ' ended' : ''), b.x, y, b.width, b.label, b.title, height);
  }
  // While the runtime as a whole is away, only the bar over all lanes shows that.
  if (drawn.hang && !model.away) {
    // A slim lane has no room for the text; its state says that the pod is stuck.
    const slim = compact || isNarrow.matches;
    piece('hang' + (slim ? ' slim' : ''), drawn.hang.x, slim ? (compact ? 0 : 19) : 3, drawn.hang.width,
      drawn.hang.inside && !slim ? drawn.hang.text : '', drawn.hang.text);
    if (!drawn.hang.inside && !slim) piece('hang-text', drawn.hang.x - drawn.hang.text.length * 6.2 - 4, 3, undefined, drawn.hang.text, '');
  }
  for (const e of drawn.ends) piece('end ' + e.kind, e.x, P.place(e.row, rows, compact).y, undefined, e.text, '');
  for (; n < lane.pieces.length; n++) lane.pieces[n].style.display = 'none';
}

// drawConditions draws when the health was not ok, also after it is ok again.
function drawConditions(from, to, width, left) {
  const strip = $('conditions');
  const drawn = P.troubled(model, from, to, width);
  strip.hidden = !drawn.length;
  strip.replaceChildren(...drawn.map((d) => {
    const piece = element('i', { class: d.level, title: d.title });
    piece.style.left = left + d.x + 'px';
    piece.style.width = d.width + 'px';
    return piece;
  }));
}

// drawAway draws the bar over all lanes while the runtime is away.
function drawAway(from, to, width, left) {
  const bar = $('away');
  const band = $('away-band');
  bar.hidden = band.hidden = !model.away;
  if (!model.away) return;
  const x = Math.max(0, ((model.away - from) / (to - from)) * width);
  const text = (model.health.stuckRelist ? 'runtime: no answer since ' : 'runtime: no list since ') + P.clock(model.away);
  const span = bar.firstElementChild;
  setText(span, text);
  // The text stands before the bar if it does not fit inside and fits there.
  const length = text.length * 6.5 + 10;
  const outside = length > width - x && length < left + x;
  span.style.left = outside ? '' : Math.max(0, Math.min(left + x + 5, left + width - length)) + 'px';
  span.style.right = outside ? 'calc(100% - ' + (left + x - 6) + 'px)' : '';
  const fill = bar.lastElementChild;
  fill.style.left = band.style.left = left + x + 'px';
  fill.style.width = band.style.width = Math.max(3, width - x) + 'px';
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
  const page = Math.max(1, Math.floor(lanes.clientHeight / P.laneHeight(pods[Math.max(0, at)] || { names: [] }, compact)));
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

// Paper does not scroll: all lanes are drawn.
matchMedia('print').addEventListener('change', (e) => {
  printing = e.matches;
  measure();
  drawPods();
});
