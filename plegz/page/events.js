// The list of events.

const SHOWN_EVENTS = 200;
const eventList = $('events');
let eventRows = []; // { number, row }, newest first
let eventsOf = ''; // the history that they are of
let eventsFit = 40; // as many as can be seen without scrolling, and some more

// drawEvents shows the newest events: all that can be seen, and more to who has scrolled.
function drawEvents() {
  const history = model.position.split('.')[0];
  if (history !== eventsOf) {
    eventsOf = history;
    eventRows = [];
    eventList.replaceChildren();
  }
  if (!model.events.length) {
    if (!eventList.childElementCount) {
      eventList.append(element('li', { class: 'none' }, element('span'), element('span'), 'None since the page was opened.'));
    }
    return;
  }
  if (!eventRows.length) eventList.replaceChildren();
  const wanted = model.events.slice(eventList.dataset.scrolled ? -SHOWN_EVENTS : -eventsFit).reverse();
  const oldest = wanted[wanted.length - 1].number;
  while (eventRows.length && eventRows[eventRows.length - 1].number < oldest) eventRows.pop().row.remove();
  const shown = eventRows.length ? [eventRows[0].number, eventRows[eventRows.length - 1].number] : [0, 0];
  const fresh = wanted.filter((e) => e.number > shown[0]).map(eventRow);
  const older = wanted.filter((e) => e.number < shown[1]).map(eventRow);
  eventList.prepend(...fresh.map((e) => e.row));
  eventList.append(...older.map((e) => e.row));
  eventRows = [...fresh, ...eventRows, ...older];
}

function eventRow(e) {
  const { pod, text } = P.eventText(e);
  const [mark, kind] = P.eventMark(e);
  const row = element('li', { title: 'listed because of: ' + e.cause }, element('time', {}, P.clock(P.time(e.time))),
    element('span', { class: kind, 'aria-hidden': 'true' }, mark),
    element('span', { class: 'text' }, element('bdi', {}, pod), ' ', element('span', { class: kind === 'crashed' ? kind : '' }, text)));
  return { number: e.number, row };
}

eventList.addEventListener('scroll', () => {
  const scrolled = eventList.scrollTop > 0;
  if (scrolled === !!eventList.dataset.scrolled) return;
  eventList.dataset.scrolled = scrolled ? 'yes' : '';
  drawEvents();
}, { passive: true });
new ResizeObserver(() => { eventsFit = Math.ceil(eventList.clientHeight / 18) + 10; }).observe(eventList);
