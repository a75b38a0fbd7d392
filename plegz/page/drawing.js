// When the page is drawn, and what.

// Milliseconds between two drawings, so that a lively node does not keep the browser busy: for
// changes in view, and for others, such as the time and the counts.
const PACE = 400;
const SLOW_PACE = 1000;
let scheduled = 0; // timer of the next drawing
let due = Infinity; // when the timer fires
let drawn = -Infinity;

// schedule draws all changes until then at once: soon if a change is in view.
function schedule(inView) {
  const at = drawn + (inView ? PACE : SLOW_PACE);
  if (paused || at >= due) return;
  clearTimeout(scheduled);
  due = at;
  scheduled = setTimeout(() => requestAnimationFrame(draw), Math.max(0, at - performance.now()));
}

// isInView reports whether a change of a pod may be in view.
function isInView(pod) {
  return inView.has(pod.uid) || tops[tops.length - 1] < size.height || (filter.order !== 'name' && scrolled === 0) ||
    filter.state !== '' || pod.uid === detailed;
}

function draw() {
  due = Infinity;
  drawn = performance.now();
  drawHealth();
  drawPlots();
  drawSide();
  drawEvents();
  drawFilter();
  drawPods();
  drawDetail();
}

function togglePause() {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', String(paused));
  setLink($('link').dataset.state);
  schedule(true);
}

$('pause').addEventListener('click', togglePause);
