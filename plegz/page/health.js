// The health: the sentence, the notes and the title.

const LEVELS = { ok: ['✓', 'Healthy'], warning: ['!', 'Degraded'], error: ['✕', 'Not healthy'] };

let said = ''; // the health that was read out last, without its numbers

// sayHealth reads the health out if more than a time or a count in it has changed.
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
    h.pods + ' pods', containers + ' containers running',
    'event stream ' + h.stream.state, h.exitStream.state !== 'off' && 'exit stream ' + h.exitStream.state,
    h.blockedReaders + ' blocked readers', P.printable(h.runtime || ''),
  ].filter(Boolean).join(' · '));
  drawNode();
  const title = mark + ' ' + (model.node ? P.printable(model.node) + ': ' : '') + word + ' · pleg';
  if (document.title !== title) document.title = title;
}

// drawNode shows the node, the agent, its start, and its other paths.
function drawNode() {
  const node = $('node');
  const now = JSON.stringify([model.node, model.version, model.started, model.links]);
  if (node.dataset.shown !== now) {
    node.dataset.shown = now;
    const links = [['Text', '?format=text'], ['JSON', '?format=json'], ...model.links.map((path) => [path, path])];
    node.replaceChildren(element('b', {}, P.printable(model.node)), model.version && element('span', {}, P.printable(model.version)),
      element('span', { id: 'started', title: P.instant(model.started) }),
      element('span', {}, ...links.flatMap(([text, href]) => [element('a', { href }, P.printable(text)), ' '])));
  }
  setText($('started'), 'started ' + P.instant(model.started).slice(0, 16) + ' UTC, ' + P.duration(model.time - model.started) + ' ago');
}
