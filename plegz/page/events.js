// The list of events.

const SHOWN_EVENTS = 200;
const eventList = $('events');
let eventRows = new Map(); // rows by the number of their newest event
let eventsOf = ''; // the history of these rows
let eventsFit = 40; // how many lines fit without scrolling, and some more

// drawEvents shows the newest events: as many as fit, and more once the list is scrolled.
function drawEvents() {
  const history = model.position.split('.')[0];
  if (history !== eventsOf) {
    eventsOf = history;
    eventRows = new Map();
    eventList.replaceChildren();
  }
  if (!model.events.length) {
    if (!eventList.childElementCount) {
      eventList.append(element('li', { class: 'none' }, element('span'), element('span'), 'None since the page was opened.'));
    }
    return;
  }
  if (!eventRows.size) eventList.replaceChildren();
  const lines = P.fold(model.events, eventList.dataset.scrolled ? SHOWN_EVENTS : eventsFit);
  const numbers = new Set(lines.map((line) => line.number));
  for (const [number, row] of eventRows) {
    if (numbers.has(number)) continue;
    row.remove();
    eventRows.delete(number);
  }
  let at = eventList.firstElementChild;
  for (const line of lines) {
    let row = eventRows.get(line.number);
    if (row) {
      at = row.nextElementSibling;
      continue;
    }
    row = lineRow(line);
    eventRows.set(line.number, row);
    eventList.insertBefore(row, at);
  }
}

function lineRow(line) {
  const e = line.newest;
  const { pod, text } = P.lineText(line);
  const [mark, kind] = line.died ? ['↻', P.eventMark(line.died)[1]] : P.eventMark(e);
  return element('li', { title: 'listed because of: ' + e.cause }, element('time', {}, P.clock(P.time(e.time))),
    element('span', { class: kind, 'aria-hidden': 'true' }, mark),
    element('span', { class: 'text' }, element('bdi', {}, pod), ' ', element('span', { class: kind === 'crashed' ? kind : '' }, text)));
}

eventList.addEventListener('scroll', () => {
  const scrolled = eventList.scrollTop > 0;
  if (scrolled === !!eventList.dataset.scrolled) return;
  eventList.dataset.scrolled = scrolled ? 'yes' : '';
  drawEvents();
}, { passive: true });
new ResizeObserver(() => { eventsFit = Math.ceil(eventList.clientHeight / 18) + 10; }).observe(eventList);
