// The tables at the side: calls in flight, subscribers and witnesses of exits.

// drawCalls shows each call with its pod, and the full IDs that crictl and ps need to find it.
function drawCalls(calls) {
  const list = $('calls');
  const shown = calls.map((c) => {
    const pod = c.podUID && model.pods.get(c.podUID);
    // The object ends with the beginning of its ID in parentheses.
    const id = (/\(([^()…]+)…?\)$/.exec(c.object || '') || [])[1];
    const found = (lives) => id && (lives || []).find((l) => l.id.startsWith(id));
    const container = pod && found(pod.containers);
    const sandbox = pod && (found(pod.sandboxes) || pod.sandboxes[0]);
    return {
      text: c.method + (c.object ? ' of ' + c.object : ''), pod: pod ? pod.title : c.podUID || '',
      container: container && container.id, sandbox: sandbox && sandbox.id, since: c.since,
    };
  });
  const now = JSON.stringify(shown);
  if (list.dataset.shown !== now) {
    list.dataset.shown = now;
    list.replaceChildren(...shown.map((c) => element('li', {}, element('bdi', {}, P.printable(c.text)),
      c.pod && element('span', {}, ', pod ', element('bdi', {}, P.printable(c.pod))), element('span', { class: 'for' }),
      ...[['container', c.container], ['sandbox', c.sandbox]].filter((p) => p[1]).map(([what, id]) => copyable(id, what + ' ' + id)))));
  }
  shown.forEach((c, i) => setText(list.children[i].querySelector('.for'), ', for ' + P.duration(model.time - P.time(c.since))));
}

function drawSide() {
  const h = model.health;
  if (!h) return;
  const calls = h.callsInFlight || [];
  $('calls-section').hidden = !calls.length;
  drawCalls(calls);
  $('witnesses-section').hidden = !model.witnesses.length;
  fill($('witnesses'), ['witness', 'state', 'exits'], model.witnesses.map((w) => [
    w.witness, (w.active ? 'active' : 'not active') + (w.refusals ? ', ' + w.refusals + ' refused' : ''), String(w.exits)]));
  fill($('subscribers'), ['number', 'pods behind'], [[String(h.subscribers), String(h.backlog)]], (row) => row[1] !== '0');
}
