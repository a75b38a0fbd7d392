// The filter, which is kept in the page's address.

const STATES = [['', 'All'], ['problems', 'Problems'], ['running', 'Running'], ['starting', 'Starting'],
  ['completed', 'Completed'], ['unknown', 'Unknown'], ['stopped', 'Stopped'], ['removed', 'Removed']];

function options(select, choices, value) {
  const now = JSON.stringify(choices);
  if (select.dataset.shown !== now) {
    select.dataset.shown = now;
    select.replaceChildren(...choices.map(([v, text]) => element('option', { value: v }, text)));
  }
  if (select.value !== value) select.value = value;
}

function drawFilter() {
  const counts = P.counts(model);
  const states = $('states');
  if (!states.childElementCount) {
    states.append(...STATES.map(([state]) => element('button', { type: 'button', 'data-state': state })));
  }
  STATES.forEach(([state, text], i) => {
    const button = states.children[i];
    const n = counts[state] || 0;
    setText(button, text + ' ' + n);
    button.hidden = !n && state !== '' && state !== 'problems' && filter.state !== state;
    button.setAttribute('aria-pressed', String(filter.state === state));
  });
  const namespaces = new Set();
  for (const pod of model.pods.values()) namespaces.add(pod.namespace);
  if (filter.namespace) namespaces.add(filter.namespace);
  options($('namespace'), [['', 'All namespaces'], ...[...namespaces].sort().map((n) => [n, P.printable(n)])], filter.namespace);
}

options($('window'), [['auto', 'Time: fitted'], ...P.WINDOWS.map((w) => [String(w), 'Last ' + P.duration(w).replace('60 s', 'minute')])], filter.window);
options($('rows'), [['auto', 'Rows: auto'], ['compact', 'Compact'], ['full', 'All containers']], filter.rows);
options($('order'), [['name', 'By name'], ['changed', 'By last change'], ['restarts', 'By restarts']], filter.order);

$('states').addEventListener('click', (e) => {
  const button = e.target.closest('button');
  if (button) setFilter({ state: button.dataset.state });
});
$('name').addEventListener('input', (e) => setFilter({ name: e.target.value }));
for (const id of ['namespace', 'window', 'order', 'rows']) $(id).addEventListener('change', (e) => setFilter({ [id]: e.target.value }));
$('filter').addEventListener('submit', (e) => e.preventDefault());

function setFilter(changes) {
  Object.assign(filter, changes);
  // The address keeps the filter, so that it can be passed on.
  const set = Object.entries(filter).filter(([key, v]) => v && v !== 'auto' && !(key === 'order' && v === 'name'));
  history.replaceState(null, '', set.length ? '#' + new URLSearchParams(set) : location.pathname + location.search);
  drawFilter();
  drawPods();
}

function readAddress() {
  const known = {
    state: STATES.map(([state]) => state), order: ['name', 'changed', 'restarts'], window: ['auto', ...P.WINDOWS.map(String)],
    rows: ['auto', 'compact', 'full'],
  };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (Object.hasOwn(filter, key) && (!known[key] || known[key].includes(value))) filter[key] = value;
  }
  $('name').value = filter.name;
  $('window').value = filter.window;
  $('order').value = filter.order;
  $('rows').value = filter.rows;
}
