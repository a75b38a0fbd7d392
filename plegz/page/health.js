// The health: the sentence, the notes and the title.

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
    'event stream ' + h.stream.state, h.exitStream.state !== 'off' && 'exit stream ' + h.exitStream.state,
    h.blockedReaders + ' blocked readers', P.printable(h.runtime || ''),
  ].filter(Boolean).join(' · '));
  const title = mark + ' ' + word + (model.node ? ' · ' + P.printable(model.node) : '') + ' · pleg';
  if (document.title !== title) document.title = title;
}
