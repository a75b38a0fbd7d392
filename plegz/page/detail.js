// The detail of a pod.

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
  const others = [...model.pods.values()].filter((p) => p !== pod && p.name && p.name === pod.name && p.namespace === pod.namespace);
  const uids = new Set([pod, ...others].map((p) => p.uid));
  const events = model.events.filter((e) => uids.has(e.podUID)).slice(-50).reverse();
  const now = JSON.stringify([pod, others, events.length && events[0].number]);
  if (detail.dataset.shown === now) {
    drawAges();
    return;
  }
  detail.dataset.shown = now;
  setText($('detail-title'), pod.title);
  $('detail-body').replaceChildren(
    ...podDetail(pod),
    ...(events.length ? [element('h3', {}, 'Events'), detailRows(events.map((e) => [P.clock(P.time(e.time)), P.eventText(e).text]))] : []),
    ...others.flatMap((p) => [element('h2', {}, 'Another pod of this name'), ...podDetail(p)]));
  drawAges();
}

// detailRows are pairs of a name and a value; what has no value is left out.
function detailRows(pairs) {
  const text = (value) => (value instanceof Date ?
    element('span', {}, P.instant(value.getTime()), element('span', { 'data-at': value.getTime() })) : element('bdi', {}, P.printable(value)));
  return element('dl', {}, ...pairs.filter((p) => p[1] !== undefined && p[1] !== '' && p[1] !== 0).flatMap(([name, value, bad]) => [
    element('dt', {}, P.printable(name)), element('dd', { class: bad ? 'bad' : '' }, text(value))]));
}

function podDetail(pod) {
  const at = (t) => (t ? new Date(t) : '');
  const rows = detailRows;
  const maps = ['labels', 'annotations'].filter((m) => pod[m]).flatMap((m) => [
    element('h3', {}, m[0].toUpperCase() + m.slice(1)), rows(Object.entries(pod[m]))]);
  return [
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
  ];
}

// drawAges brings the ages in the detail up to date, and leaves alone what may be selected.
function drawAges() {
  for (const e of detail.querySelectorAll('[data-at]')) setText(e, ' (' + P.duration(model.time - Number(e.dataset.at)) + ' ago)');
}
