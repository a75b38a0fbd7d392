// The page: it puts the model into the document, and takes in the stream. Everything that
// comes from the stream is put in as text.
(() => {
  const $ = (id) => document.getElementById(id);
  const P = PLEGZ;
  const model = P.newModel();
  const filter = { name: '', namespace: '', state: '', order: 'name', window: 'auto' };
  let paused = false;
  let chosen = ''; // UID of the lane that the keyboard is at
  let detailed = ''; // UID of the pod whose detail is open
  let pods = []; // in their order
  let tops = [0];
  let inView = new Set(); // UIDs of the lanes that are seen

  function element(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === 'class') e.className = value;
      else if (value !== undefined) e.setAttribute(name, value);
    }
    e.append(...children.filter((c) => c !== undefined && c !== ''));
    return e;
  }

  function setText(e, text) {
    if (e.textContent !== text) e.textContent = text;
  }

  // say has a screen reader say something. What it reads out is not what is seen, where a time
  // changes every second.
  function say(text) {
    setText($('spoken'), text);
  }

  const isNarrow = matchMedia('(max-width: 800px)');

  // --- the stream ---------------------------------------------------------------------

  const STALLED = 5000; // there is a message a second
  let source = null;
  let heard = performance.now(); // when the last message came; before the first, when it was first asked for
  let attempted = 0; // performance.now() of the last attempt
  let again = 0; // timer of the next attempt
  let refused = ''; // why the last attempt was refused

  function connect() {
    clearTimeout(again);
    if (source) source.close();
    attempted = performance.now();
    source = new EventSource('?format=stream' + (model.position ? '&since=' + encodeURIComponent(model.position) : ''));
    source.onmessage = (message) => {
      const news = JSON.parse(message.data);
      const level = model.level;
      P.apply(model, news);
      heard = performance.now();
      refused = '';
      setLink('live');
      schedule(news.full || model.level !== level || news.pods.some(isInView));
    };
    source.onerror = () => {
      setLink('reconnecting');
      // The browser tries again by itself, unless it was refused.
      if (source.readyState !== EventSource.CLOSED) return;
      again = setTimeout(connect, 3000);
      askWhy();
    };
  }

  // askWhy finds out why a stream was refused, which the browser does not say.
  function askWhy() {
    fetch('?format=stream', { method: 'HEAD', cache: 'no-store' }).then((answer) => {
      refused = answer.ok ? '' : answer.status === 503 ? 'too many viewers' : 'refused with status ' + answer.status;
      if ($('link').dataset.state !== 'live') setLink('reconnecting');
    }, () => {});
  }

  function setLink(state) {
    const link = $('link');
    const trouble = state === 'live' ? '' : state + (refused && ', ' + refused);
    if (link.dataset.trouble !== trouble) say(trouble);
    link.dataset.state = state;
    link.dataset.trouble = trouble;
    const ago = Math.round((performance.now() - heard) / 1000);
    setText(link, trouble ? trouble + (model.time ? ', last news ' + ago + ' s ago' : '') : paused ? 'paused' : 'live');
    document.body.classList.toggle('stale', state !== 'live' && model.time > 0);
  }

  // A connection that is up and brings nothing is replaced, and so is one that does not come up
  // although the browser tries. Each has the time that a message may take.
  setInterval(() => {
    const now = performance.now();
    if (document.hidden || now - heard < STALLED) return;
    setLink('reconnecting');
    const isOpen = source && source.readyState === EventSource.OPEN;
    if (now - attempted > (isOpen ? STALLED : 2 * STALLED)) connect();
  }, 1000);

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      clearTimeout(again);
      if (source) source.close();
      source = null;
      return;
    }
    heard = performance.now();
    connect();
  });

  // --- drawing ------------------------------------------------------------------------

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
    drawFilter();
    drawPods();
    drawDetail();
  }

  const LEVELS = { ok: ['✓', 'Healthy'], warning: ['!', 'Degraded'], error: ['✕', 'Not healthy'] };

  let said = ''; // the health that was said last, without its numbers

  // sayHealth says the health when it is another, and not when only a time or a count in it is.
  function sayHealth() {
    const gist = model.level === 'ok' ? 'ok' : model.sentence.replace(/[\d.]+/g, '');
    if (gist === said) return;
    said = gist;
    say(P.printable(model.level === 'ok' ? LEVELS.ok[1] : model.sentence));
  }

  function drawHealth() {
    const h = model.health;
    if (!h) return;
    sayHealth();
    const [mark, word] = LEVELS[model.level];
    $('banner').dataset.level = model.level;
    setText($('level'), mark);
    setText($('sentence'), P.printable(model.sentence));
    const notes = $('notes');
    const now = model.notes.map((n) => P.printable(n[0].toUpperCase() + n.slice(1)));
    if (notes.dataset.shown !== now.join('\n')) {
      notes.dataset.shown = now.join('\n');
      notes.replaceChildren(...now.map((n) => element('li', {}, n)));
    }
    let containers = 0;
    for (const pod of model.pods.values()) for (const c of pod.containers) if (c.state === 'running') containers++;
    setText($('facts'), [
      model.node && 'node ' + P.printable(model.node), h.pods + ' pods', containers + ' containers running',
      'event stream ' + h.stream.state, h.blockedReaders >= 0 && h.blockedReaders + ' blocked readers', P.printable(h.runtime || ''),
    ].filter(Boolean).join(' · '));
    const title = mark + ' ' + word + (model.node ? ' · ' + P.printable(model.node) : '') + ' · pleg';
    if (document.title !== title) document.title = title;
  }

  const PLOTS = [
    { key: 'relist', title: 'relist takes' },
    { key: 'relistAge', title: 'last relist began', suffix: ' ago', unless: 'relist' },
    { key: 'inspection', title: 'inspection call takes' },
    { key: 'oldestCall', title: 'oldest call in flight' },
  ];

  function drawPlots() {
    const has = (key) => model.samples.some((s) => s[key] !== undefined);
    const shown = PLOTS.filter((p) => has(p.key) && !(p.unless && has(p.unless)));
    const plots = $('plots');
    const keys = shown.map((p) => p.key).join();
    if (plots.dataset.keys !== keys) {
      plots.dataset.keys = keys;
      plots.replaceChildren(...shown.map((p) => {
        const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
        svg.setAttribute('viewBox', '0 0 300 34');
        svg.setAttribute('preserveAspectRatio', 'none');
        svg.setAttribute('aria-hidden', 'true');
        for (const c of ['area', 'line']) {
          const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
          path.setAttribute('class', c);
          svg.append(path);
        }
        return element('figure', {}, element('figcaption', {}, p.title, element('strong'), element('span')), svg);
      }));
    }
    shown.forEach((p, i) => {
      const figure = plots.children[i];
      const plot = P.plot(model.samples, p.key, 300, 34);
      const [area, line] = figure.querySelectorAll('path');
      area.setAttribute('d', plot.area);
      line.setAttribute('d', plot.path);
      setText(figure.querySelector('strong'), plot.now === undefined ? '–' : plot.now === 0 ? 'none' : P.duration(plot.now * 1000) + (p.suffix || ''));
      setText(figure.querySelector('span'), plot.max ? 'at most ' + P.duration(plot.max * 1000) : 'in the last minutes');
    });
  }

  function drawSide() {
    const h = model.health;
    if (!h) return;
    const calls = h.callsInFlight || [];
    $('calls-section').hidden = !calls.length;
    fill($('calls'), ['call', 'for'], calls.map((c) => [
      c.method + (c.object ? ' of ' + c.object : '') + podText(c.podUID), P.duration(model.time - P.time(c.since)),
    ]));
    const subscribers = (h.namedSubscribers || []).map((s) => [
      s.name + (s.name === 'plegz' ? ' (this page)' : '') + (s.subscriptions > 1 ? ' × ' + s.subscriptions : ''), String(s.backlog),
      s.behindSince ? P.duration(model.time - P.time(s.behindSince)) : '–',
    ]);
    const named = (h.namedSubscribers || []).reduce((n, s) => n + s.subscriptions, 0);
    const backlog = (h.namedSubscribers || []).reduce((n, s) => n + s.backlog, 0);
    if (h.subscribers > named) subscribers.push([(h.subscribers - named) + ' without a name', String(h.backlog - backlog), '']);
    fill($('subscribers'), ['name', 'pods behind', 'for'], subscribers, (row) => row[1] !== '0');
    drawEvents();
  }

  function podText(uid) {
    if (!uid) return '';
    const pod = model.pods.get(uid);
    return ', pod ' + (pod ? pod.title : uid);
  }

  // fill sets the rows of a table, and leaves it alone where nothing has changed.
  function fill(table, heading, rows, warn) {
    const now = JSON.stringify(rows);
    if (table.dataset.shown === now) return;
    table.dataset.shown = now;
    table.replaceChildren(
      element('thead', {}, element('tr', {}, ...heading.map((h) => element('th', { scope: 'col' }, h)))),
      element('tbody', {}, ...rows.map((row) => element('tr', {}, ...row.map((cell, i) => element('td',
        { class: i === 1 && warn && warn(row) ? 'behind' : '' }, element('bdi', {}, P.printable(cell))))))));
  }

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

  // --- the filter ---------------------------------------------------------------------

  const STATES = [['', 'All'], ['problems', 'Problems'], ['running', 'Running'], ['starting', 'Starting'],
    ['completed', 'Completed'], ['stopped', 'Stopped'], ['removed', 'Removed']];

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

  options($('window'), [['auto', 'Time: auto'], ...P.WINDOWS.map((w) => [String(w), 'Last ' + P.duration(w).replace('60 s', 'minute')])], filter.window);
  options($('order'), [['name', 'By name'], ['changed', 'By last change'], ['restarts', 'By restarts']], filter.order);

  $('states').addEventListener('click', (e) => {
    const button = e.target.closest('button');
    if (button) setFilter({ state: button.dataset.state });
  });
  $('name').addEventListener('input', (e) => setFilter({ name: e.target.value }));
  for (const id of ['namespace', 'window', 'order']) $(id).addEventListener('change', (e) => setFilter({ [id]: e.target.value }));
  $('filter').addEventListener('submit', (e) => e.preventDefault());
  $('pause').addEventListener('click', togglePause);

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
    };
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      if (Object.hasOwn(filter, key) && (!known[key] || known[key].includes(value))) filter[key] = value;
    }
    $('name').value = filter.name;
    $('window').value = filter.window;
    $('order').value = filter.order;
  }

  function togglePause() {
    paused = !paused;
    $('pause').setAttribute('aria-pressed', String(paused));
    setText($('pause'), paused ? 'Go on' : 'Pause');
    setLink($('link').dataset.state);
    schedule(true);
  }

  // --- the lanes ----------------------------------------------------------------------

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
        ...pod.names.map((n) => P.printable(n) + ' ' + P.stateText(pod.containers.find((c) => (c.name || '') === n)))].filter(Boolean).join(', '));
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

  document.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || $('detail').open) return;
    if (e.key === 'Escape' && e.target === $('name')) {
      $('name').value = '';
      setFilter({ name: '' });
      lanes.focus();
      return;
    }
    if (e.target.matches('input, select')) return;
    if (e.key === '/') {
      $('name').focus();
      e.preventDefault();
    } else if (e.key === 'p') togglePause();
  });

  // --- a pod's detail -----------------------------------------------------------------

  const detail = $('detail');
  detail.addEventListener('close', () => { detailed = ''; lanes.focus(); });
  detail.addEventListener('click', (e) => { if (e.target === detail) detail.close(); });

  function openDetail(uid) {
    detailed = uid;
    drawDetail();
    if (!detail.open) detail.showModal();
    drawLanes.again();
  }

  function drawDetail() {
    if (!detailed) return;
    const pod = model.pods.get(detailed);
    if (!pod) {
      setText($('detail-body'), 'This pod is gone, and its history was forgotten.');
      return;
    }
    const events = model.events.filter((e) => e.podUID === pod.uid).slice(-50).reverse();
    const now = JSON.stringify([pod, events.length && events[0].number]);
    if (detail.dataset.shown === now) {
      drawAges();
      return;
    }
    detail.dataset.shown = now;
    setText($('detail-title'), pod.title);
    const at = (t) => (t ? new Date(t) : '');
    const text = (value) => (value instanceof Date ?
      element('span', {}, P.instant(value.getTime()), element('span', { 'data-at': value.getTime() })) : element('bdi', {}, P.printable(value)));
    const rows = (pairs) => element('dl', {}, ...pairs.filter((p) => p[1] !== undefined && p[1] !== '' && p[1] !== 0).flatMap(([name, value, bad]) => [
      element('dt', {}, P.printable(name)), element('dd', { class: bad ? 'bad' : '' }, text(value))]));
    const maps = ['labels', 'annotations'].filter((m) => pod[m]).flatMap((m) => [
      element('h3', {}, m[0].toUpperCase() + m.slice(1)), rows(Object.entries(pod[m]))]);
    $('detail-body').replaceChildren(
      rows([['State', (P.MARKS[pod.state] || '') + ' ' + pod.state, pod.state === 'hung' || pod.state === 'failing' || pod.state === 'crashed'],
        ['Hangs since', at(P.time(pod.hangingSince)), true], ['Failures', pod.failures], ['Error', pod.error, true],
        ['UID', pod.uid], ['IPs', (pod.ips || []).join(', ')], ['Runtime handler', pod.runtimeHandler], ['Created', at(P.time(pod.createdAt))],
        ['Removed', at(pod.removed)], ['Last inspected', at(P.time(pod.observedAt))]]),
      ...pod.containers.flatMap((c) => [element('h3', {}, 'Container ', element('bdi', {}, P.printable(c.name || ''))), rows([
        ['State', P.stateText(c), c.exitCode], ['Message', c.message], ['Restarts', c.restarts], ['Created', at(c.created)], ['Started', at(c.started)],
        ['Finished', at(c.finished)], ['Ran for', c.started && c.finished ? P.duration(c.finished - c.started) : ''], ['Removed', at(c.removed)],
        ['Image', c.image], ['ID', c.id]])]),
      ...pod.sandboxes.flatMap((s) => [element('h3', {}, 'Sandbox'), rows([
        ['State', s.state === 'running' ? 'ready' : s.state === 'exited' ? 'not ready' : s.state], ['Created', at(s.created)],
        ['Stopped', at(s.finished)], ['Removed', at(s.removed)], ['ID', s.id]])]),
      ...maps,
      ...(events.length ? [element('h3', {}, 'Events'), rows(events.map((e) => [P.clock(P.time(e.time)), P.eventText(e).text]))] : []));
    drawAges();
  }

  // drawAges brings the ages in the detail up to date, and leaves alone what may be selected.
  function drawAges() {
    for (const e of detail.querySelectorAll('[data-at]')) setText(e, ' (' + P.duration(model.time - Number(e.dataset.at)) + ' ago)');
  }

  readAddress();
  drawFilter();
  setLink('connecting');
  if (!document.hidden) connect(); // a tab in the background costs the node nothing
})();
