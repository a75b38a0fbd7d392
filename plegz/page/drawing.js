// When the page is drawn, and what.

// Milliseconds between two drawings, or a lively node keeps the browser busy: of what is
// in view, and of what is not, such as the time and the counts.
const PACE = 400;
const SLOW_PACE = 1000;
let scheduled = 0; // timer of the next drawing
let due = Infinity; // when that is
let drawn = -Infinity;

// schedule draws everything that has come until then at once: soon if it is in view.
function schedule(inView) {
  const at = drawn + (inView ? PACE : SLOW_PACE);
  if (paused || at >= due) return;
  clearTimeout(scheduled);
  due = at;
  scheduled = setTimeout(() => requestAnimationFrame(draw), Math.max(0, at - performance.now()));
}

// isInView reports whether a pod's lane is seen, or would be.
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
