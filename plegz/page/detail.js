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

// detailRows shows pairs of a name and a value, and leaves out pairs without a value.
function detailRows(pairs) {
  const text = (value) => (value instanceof Date ?
    element('span', {}, P.instant(value.getTime()), element('span', { 'data-at': value.getTime() })) : element('bdi', {}, P.printable(value)));
  return element('dl', {}, ...pairs.filter((p) => p[1] !== undefined && p[1] !== '' && p[1] !== 0).flatMap(([name, value, bad]) => [
    element('dt', {}, P.printable(name)), element('dd', { class: bad ? 'bad' : '' }, text(value))]));
}

// crictl returns the crictl command for this node, with the endpoint from the runtime's description.
function crictl() {
  const endpoint = / at (unix:\/\/[^\s,]+)/.exec((model.health && model.health.runtime) || '');
  return 'crictl ' + (endpoint ? '--runtime-endpoint ' + endpoint[1] + ' ' : '');
}

// commands are lines to be run on the node.
function commands(lines) {
  return element('div', { class: 'commands' }, ...lines.map((line) => copyable(line)));
}

// isPlain reports whether a text from the runtime may stand in a command line as it is.
const isPlain = (id) => /^[\w.-]+$/.test(id);

function containerDetail(c, at) {
  return [element('h3', {}, 'Container ', element('bdi', {}, P.printable(c.name || ''))), detailRows([
    ['State', P.stateText(c), c.exitCode], ['Message', c.message], ['Restarts', c.restartCount], ['Created', at(c.created)], ['Started', at(c.started)],
    [P.isForgotten(c) ? 'Finished before' : 'Finished', at(c.finished)], ['Ran for', P.ranFor(c)], ['Removed', at(c.removed)],
    ['Image', c.image], ['ID', c.id]]),
  c.state !== 'removed' && isPlain(c.id) && commands([crictl() + 'inspect ' + c.id, crictl() + 'logs --tail 50 ' + c.id]) || ''];
}

// lifeRow is an earlier life of a container, in one line.
function lifeRow(c) {
  const ran = P.ranFor(c) && ', ran for ' + P.ranFor(c);
  return [P.instant(c.started || c.created).slice(11, 19), (c.restartCount ? 'restart ' + c.restartCount + ': ' : '') + P.stateText(c) + ran, c.exitCode];
}

function podDetail(pod) {
  const at = (t) => (t ? new Date(t) : '');
  const rows = detailRows;
  const maps = ['labels', 'annotations'].filter((m) => pod[m]).flatMap((m) => [
    element('h3', {}, m[0].toUpperCase() + m.slice(1)), rows(Object.entries(pod[m]))]);
  return [
    rows([['State', (P.MARKS[pod.state] || '') + ' ' + pod.state, pod.state === 'stuck' || pod.state === 'failing' || pod.state === 'crashed'],
      ['Stuck since', at(P.time(pod.stuckSince)), true], ['Failures', pod.failures], ['Error', pod.error, true],
      ['UID', pod.uid], ['IPs', (pod.ips || []).join(', ')], ['Runtime handler', pod.runtimeHandler], ['Created', at(P.time(pod.createdAt))],
      ['Removed', at(pod.removed)], ['Last inspected', at(P.time(pod.observedAt))]]),
    ...[...pod.byName.values()].flatMap(([newest, ...earlier]) => [...containerDetail(newest, at),
      ...(earlier.length ? [element('h4', {}, 'Earlier lives'), rows(earlier.map(lifeRow))] : [])]),
    ...pod.sandboxes.flatMap((s) => [element('h3', {}, 'Sandbox'), rows([
      ['State', s.state === 'running' ? 'ready' : s.state === 'exited' ? 'not ready' : s.state], ['Created', at(s.created)],
      ['Stopped', at(s.finished)], ['Removed', at(s.removed)], ['ID', s.id]]),
    s.state !== 'removed' && isPlain(s.id) && commands([crictl() + 'inspectp ' + s.id,
      'pgrep -af "containerd-shim.* -id ' + s.id + '" # killing it ends the whole pod']) || '']),
    ...maps,
  ];
}

// drawAges updates the ages in the detail and nothing else, so that a selection stays.
function drawAges() {
  for (const e of detail.querySelectorAll('[data-at]')) setText(e, ' (' + P.duration(model.time - Number(e.dataset.at)) + ' ago)');
}
