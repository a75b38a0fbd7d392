// The tables at the side: calls in flight and subscribers.

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
  ]);
  const named = (h.namedSubscribers || []).reduce((n, s) => n + s.subscriptions, 0);
  const backlog = (h.namedSubscribers || []).reduce((n, s) => n + s.backlog, 0);
  if (h.subscribers > named) subscribers.push([(h.subscribers - named) + ' without a name', String(h.backlog - backlog)]);
  fill($('subscribers'), ['name', 'pods behind'], subscribers, (row) => row[1] !== '0');
}

function podText(uid) {
  if (!uid) return '';
  const pod = model.pods.get(uid);
  return ', pod ' + (pod ? pod.title : uid);
}
