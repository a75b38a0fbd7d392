// What the page shows, as functions of the messages: no document, no network, no clock.
'use strict';

const PLEGZ = (() => {
  const MINUTE = 60e3;
  const WINDOWS = [1, 5, 15, 60, 360, 1440].map((minutes) => minutes * MINUTE);
  const MAX_EVENTS = 1000;
  const MAX_SAMPLES = 600;
  const PROBLEMS = new Set(['stuck', 'failing', 'crashed']);
  const MARKS = {
    stuck: '◔', failing: '!', crashed: '✕', starting: '…', running: '▶', completed: '✓', unknown: '?', stopped: '■', removed: '┤',
  };

  const time = (text) => (text ? Date.parse(text) : 0);

  function newModel() {
    return {
      time: 0, since: 0, level: '', sentence: '', notes: [], health: null, node: '', version: '', started: 0, links: [],
      away: 0, witnesses: [], conditions: [], position: '', pods: new Map(), events: [], samples: [],
    };
  }

  // apply takes in a message of the stream: everything, or only changes.
  function apply(model, message) {
    if (message.full) {
      model.pods.clear();
      model.events = [];
      model.samples = [];
    }
    model.time = time(message.time);
    model.since = time(message.recordingSince);
    model.position = message.position;
    model.node = message.node || '';
    model.version = message.version || '';
    model.started = time(message.startedAt);
    model.links = message.links || [];
    if (message.level) {
      model.level = message.level;
      model.sentence = message.sentence;
      model.notes = message.notes || [];
      model.health = message.health;
      model.away = time(message.awaySince); // since when the runtime as a whole is away; 0 if it is not
      model.witnesses = message.witnesses || [];
    }
    if (message.conditions) model.conditions = message.conditions;
    for (const pod of message.pods) model.pods.set(pod.uid, prepare(pod));
    const forgotten = (x) => x.gone && x.gone <= message.goneThrough;
    for (const [uid, pod] of model.pods) {
      if (forgotten(pod)) model.pods.delete(uid);
      else if (pod.oldestGone <= message.goneThrough) {
        const left = (lives) => lives.filter((l) => !forgotten(l));
        model.pods.set(uid, derive({ ...pod, containers: left(pod.containers), sandboxes: left(pod.sandboxes) }));
      }
    }
    model.events = model.events.concat(message.events).slice(-MAX_EVENTS);
    model.samples = model.samples.concat(message.samples).slice(-MAX_SAMPLES);
    return model;
  }

  // prepare parses the times of a pod, and sets the fields for search and order.
  function prepare(pod) {
    const life = (l) => ({
      ...l, created: time(l.createdAt), started: time(l.startedAt), finished: time(l.finishedAt), removed: time(l.removedAt),
    });
    pod.containers = (pod.containers || []).map(life);
    pod.sandboxes = (pod.sandboxes || []).map(life);
    pod.title = printable(pod.name ? pod.namespace + '/' + pod.name : pod.uid);
    pod.key = pod.title.toLowerCase();
    pod.removed = time(pod.removedAt);
    pod.stuck = time(pod.stuckSince);
    pod.begun = Math.min(...[...pod.containers, ...pod.sandboxes].map((l) => l.created).filter(Boolean), time(pod.createdAt) || Infinity);
    pod.ended = pod.removed || pod.state === 'stopped' ? Math.max(0, ...pod.containers.map((c) => c.finished || c.removed || Infinity)) : Infinity;
    pod.latest = Math.max(time(pod.createdAt), pod.removed,
      ...pod.containers.map((c) => Math.max(c.created, c.started, c.finished)));
    return derive(pod);
  }

  // derive sets what follows from the lives of a pod, such as its containers by name, newest first.
  function derive(pod) {
    pod.byName = new Map(pod.containers.map((c) => c.name || '').sort().map((name) => [name, []]));
    for (const c of pod.containers) pod.byName.get(c.name || '').push(c);
    pod.names = [...pod.byName.keys()];
    const gone = [...pod.containers, ...pod.sandboxes].map((l) => l.gone).filter(Boolean);
    pod.oldestGone = gone.length ? Math.min(...gone) : Infinity;
    return pod;
  }

  // printable escapes characters that do not print, or that change the direction of writing.
  function printable(text) {
    return String(text ?? '').replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\p{Cs}]/gu, (c) => '\\u{' + c.codePointAt(0).toString(16) + '}');
  }

  // list returns the pods to show, in order. Pods of one name that followed one another are joined.
  function list(model, filter, from) {
    const wanted = filter.name.trim().toLowerCase();
    const named = new Map();
    for (const pod of model.pods.values()) {
      if (filter.namespace && pod.namespace !== filter.namespace) continue;
      if (wanted && !pod.key.includes(wanted)) continue;
      if (pod.removed && pod.removed < from) continue;
      const name = pod.name ? pod.namespace + '/' + pod.name : '\n' + pod.uid;
      if (named.has(name)) named.get(name).push(pod);
      else named.set(name, [pod]);
    }
    const pods = [...named.values()].flatMap(succession).filter((pod) => inState(pod, filter.state));
    const byName = (a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : a.uid < b.uid ? -1 : 1);
    const stuck = (pod) => (pod.state === 'stuck' ? 2 : pod.state === 'failing' ? 1 : 0);
    const gone = (pod) => (pod.state === 'removed' ? 1 : 0);
    const orders = {
      name: (a, b) => gone(a) - gone(b) || stuck(b) - stuck(a) || byName(a, b),
      changed: (a, b) => b.latest - a.latest || byName(a, b),
      restarts: (a, b) => gone(a) - gone(b) || (b.restarts || 0) - (a.restarts || 0) || byName(a, b),
    };
    return pods.sort(orders[filter.order] || orders.name);
  }

  // succession joins pods of one name: a pod joins another that had ended before it began.
  function succession(pods) {
    if (pods.length === 1) return pods;
    const rows = [];
    for (const pod of pods.sort((a, b) => a.begun - b.begun)) {
      const row = rows.find((r) => r[0].ended <= pod.begun);
      if (row) row.unshift(pod);
      else rows.push([pod]);
    }
    return rows.map(joined);
  }

  const rows = new WeakMap(); // joined pods, by the newest of each

  // joined returns the first pod, and adds the lives of the pods before it.
  function joined([pod, ...before]) {
    if (!before.length) return pod;
    const known = rows.get(pod);
    if (known && known.before.length === before.length && before.every((p, i) => p === known.before[i])) return known;
    const all = [pod, ...before];
    const row = derive({
      ...pod, before, latest: Math.max(...all.map((p) => p.latest)),
      containers: all.flatMap((p) => p.containers), sandboxes: all.flatMap((p) => p.sandboxes),
    });
    rows.set(pod, row);
    return row;
  }

  // inState reports whether a pod, or an earlier pod joined to it, is in a state.
  function inState(pod, state) {
    const is = (p) => p.state === state || (state === 'problems' && PROBLEMS.has(p.state));
    return !state || is(pod) || (pod.before || []).some(is);
  }

  // counts returns how many pods are in each state; removed pods count in no sum.
  function counts(model) {
    const n = { '': 0, problems: 0 };
    for (const pod of model.pods.values()) {
      if (pod.state !== 'removed') n['']++;
      if (PROBLEMS.has(pod.state)) n.problems++;
      n[pod.state] = (n[pod.state] || 0) + 1;
    }
    return n;
  }

  // LONGEST_FIT is the longest time that fit returns.
  const LONGEST_FIT = 15 * MINUTE;
  const FITS = [0.5, 0.75, 1, 1.5, 2, 3, 5, 7, 10].map((minutes) => minutes * MINUTE);

  // fit is the shortest time that shows everything that happened to pods in the last 15 minutes.
  function fit(model, pods) {
    let oldest = model.away || model.time;
    const show = (t) => {
      if (t > model.time - LONGEST_FIT && t < oldest) oldest = t;
    };
    for (const pod of pods) {
      for (const life of [...pod.containers, ...pod.sandboxes]) {
        [life.created, life.started, life.finished, life.removed].forEach(show);
      }
    }
    for (const l of model.conditions.slice(1)) show(time(l.time));
    return oldest === model.time ? LONGEST_FIT : FITS.find((f) => f >= (model.time - oldest) * 1.04) || LONGEST_FIT;
  }

  // TAIL is how many characters at the end of a long name always show: pods of one owner differ there.
  const TAIL = 6;

  // split divides a name into a beginning that may be cut, and an end that is always shown.
  function split(name) {
    const chars = [...name];
    return chars.length <= TAIL ? [name, ''] : [chars.slice(0, -TAIL).join(''), chars.slice(-TAIL).join('')];
  }

  // heights of a lane in pixels.
  const ROW = 18;
  const TITLE = 22;
  const COMPACT = 22;

  // laneHeight is the height of a pod's lane: one row, or a title and a row for each container name.
  function laneHeight(pod, compact) {
    return compact ? COMPACT : TITLE + Math.max(1, pod.names.length) * ROW + 4;
  }

  // layout returns the top of each lane, and last the height of all lanes.
  function layout(pods, compact) {
    const tops = new Array(pods.length + 1);
    let y = 0;
    for (let i = 0; i < pods.length; i++) {
      tops[i] = y;
      y += laneHeight(pods[i], compact);
    }
    tops[pods.length] = y;
    return tops;
  }

  // visible returns the first visible lane, and the first invisible one after it.
  function visible(tops, scroll, height) {
    let low = 0;
    let high = tops.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (tops[middle] <= scroll) low = middle;
      else high = middle - 1;
    }
    let end = low;
    while (end < tops.length - 1 && tops[end] < scroll + height) end++;
    return [Math.min(low, tops.length - 1), end];
  }

  // place returns the position and the height of a container's bars in a pod's lane.
  function place(row, rows, compact) {
    if (!compact) return { y: TITLE + row * ROW + 2, height: 14 };
    const height = rows === 1 ? 14 : Math.max(1, Math.floor(18 / rows) - 1);
    return { y: rows === 1 ? 4 : 2 + row * Math.max(1, Math.floor(18 / rows)), height };
  }

  // bars returns what is drawn of a pod between two times, on a track of this width. Bars that are
  // too low for a text have none.
  function bars(pod, from, to, width, compact) {
    const labelled = !compact || pod.names.length === 1;
    const x = (t) => Math.max(-4, Math.min(width, ((t - from) / (to - from)) * width));
    const drawn = { sandboxes: [], bars: [], ends: [], hang: null };
    if (pod.stuck) {
      const at = Math.max(0, x(pod.stuck));
      const room = width - at - 10;
      const texts = ['no answer since ' + clock(pod.stuck), 'no answer'];
      // The text stands before the bar if it does not fit inside.
      const inside = texts.find((s) => s.length * 6.5 < room);
      drawn.hang = { x: at, width: width - at, text: inside || texts[0], inside: !!inside };
    }
    for (const s of pod.sandboxes) {
      const end = s.finished || s.removed || to;
      if (end >= from) drawn.sandboxes.push({ x: x(s.created), width: Math.max(3, x(end) - x(s.created)) });
    }
    pod.names.forEach((name, row) => {
      const lives = [...pod.byName.get(name)].sort((a, b) => a.created - b.created);
      lives.forEach((c, i) => {
        const begin = c.started || c.created || from;
        const end = c.finished || c.removed || (c.state === 'exited' ? begin : to);
        if (end < from) return;
        const bar = { id: c.id, row, x: x(begin), kind: kind(c), removed: c.state === 'removed', title: lifeTitle(c) };
        bar.width = Math.max(4, x(end) - bar.x);
        bar.label = labelled && bar.width > 90 ? barLabel(c) : '';
        drawn.bars.push(bar);
        const text = labelled ? endLabel(c) : '';
        if (!text || end >= to) return;
        const next = lives[i + 1];
        // The end of the bar before it, with room for that bar's text.
        const before = i === 0 ? 0 : x(lives[i - 1].finished || lives[i - 1].removed || from) + 60;
        const room = (next ? x(next.started || next.created) : width) - (bar.x + bar.width) - 3;
        const fits = (s) => s.length * 7 + 3 < room;
        const brief = text.split(' ').slice(0, 2).join(' ');
        const label = [text, brief, text[0]].find(fits);
        const piece = { row, kind: bar.kind };
        if (label && (next || label === text)) drawn.ends.push({ ...piece, x: bar.x + bar.width + 3, text: label });
        else if (!next && bar.width > brief.length * 7 + 12) {
          // The life has just ended, so there is no room after its bar.
          bar.label = bar.width > text.length * 7 + 12 ? text : brief;
          bar.ended = true;
        } else if (!next && bar.x - before > brief.length * 7 + 8) {
          drawn.ends.push({ ...piece, x: bar.x - brief.length * 7 - 4, text: brief });
        }
      });
    });
    return drawn;
  }

  function kind(c) {
    if (c.exitCode !== undefined) return c.exitCode === 0 ? 'done' : 'crashed';
    if (c.state === 'running') return 'running';
    if (c.state === 'created') return 'created';
    return 'unknown';
  }

  // endLabel describes how a life ended; "" if it has not.
  function endLabel(c) {
    if (c.exitCode !== undefined) {
      const reason = c.unconfirmed ? 'unconfirmed' : c.exitCode === 0 || c.reason === 'Error' ? '' : printable(c.reason || '');
      return (c.exitCode === 0 ? '✓ 0' : '✕ ' + c.exitCode) + (reason && ' ' + reason);
    }
    return c.state === 'exited' || c.state === 'removed' ? '?' : '';
  }

  function barLabel(c) {
    const restart = c.restartCount ? 'restart ' + c.restartCount : '';
    return c.state === 'created' ? 'created' : restart;
  }

  // isForgotten reports whether the exit code is unknown. The time of the exit may then be too late.
  const isForgotten = (c) => c.state === 'exited' && c.exitCode === undefined;

  const ranFor = (c) => (c.started && c.finished && !isForgotten(c) ? duration(c.finished - c.started) : '');

  function lifeTitle(c) {
    const lines = [printable(c.name || 'sandbox') + ' ' + printable(c.id.slice(0, 12)) + ': ' + stateText(c)];
    if (c.restartCount) lines.push('restart ' + c.restartCount);
    if (c.started) lines.push('started ' + clock(c.started));
    if (c.finished) lines.push('finished ' + (isForgotten(c) ? 'before ' : '') + clock(c.finished) + (ranFor(c) && ', ran for ' + ranFor(c)));
    if (c.removed) lines.push('removed ' + clock(c.removed));
    return lines.join('\n');
  }

  function stateText(c) {
    if (c.exitCode === undefined) return c.state + (c.state === 'exited' ? ', code unknown' : '');
    const reason = c.reason ? ' ' + printable(c.reason) : '';
    return (c.state === 'removed' ? 'removed, ' : '') + 'exited ' + c.exitCode + reason + (c.unconfirmed ? ', unconfirmed' : '');
  }

  // troubled returns what is drawn of the times between two times in which the health was not ok.
  function troubled(model, from, to, width) {
    const x = (t) => ((Math.min(to, Math.max(from, t)) - from) / (to - from)) * width;
    return model.conditions.flatMap((l, i) => {
      const next = model.conditions[i + 1];
      const [begin, end] = [time(l.time), next ? time(next.time) : to];
      if (l.level === 'ok' || end < from) return [];
      const title = clock(begin) + ' to ' + (next ? clock(end) : 'now') + ': ' + printable(l.sentence);
      return { level: l.level, x: x(begin), width: Math.max(3, x(end) - x(begin)), title };
    });
  }

  // ticks returns the labels of the time axis.
  function ticks(from, to, width) {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600].map((s) => s * 1000);
    const step = steps.find((s) => ((to - from) / s) * 74 < width) || steps[steps.length - 1];
    const all = [];
    for (let t = Math.ceil(from / step) * step; t < to; t += step) {
      const at = ((t - from) / (to - from)) * width;
      if (at > 20 && at < width - 125) all.push({ x: at, text: clock(t).slice(0, step % MINUTE ? 8 : 5) });
    }
    return all;
  }

  const two = (n) => String(n).padStart(2, '0');

  // clock is a time of the day, in UTC as servers log it.
  function clock(t) {
    const d = new Date(t);
    return two(d.getUTCHours()) + ':' + two(d.getUTCMinutes()) + ':' + two(d.getUTCSeconds());
  }

  // instant is a time with its day.
  function instant(t) {
    return t ? new Date(t).toISOString().replace('T', ' ').replace(/\.\d+Z/, '') + ' UTC' : '';
  }

  // duration formats milliseconds in one unit, with few digits.
  function duration(ms) {
    const s = Math.max(0, ms) / 1000;
    if (s < 0.001) return (s * 1e6).toFixed(0) + ' µs';
    if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 1 : 0) + ' ms';
    if (s < 10) return s.toFixed(1) + ' s';
    if (s < 120) return s.toFixed(0) + ' s';
    if (s < 7200) return Math.floor(s / 60) + ' min';
    if (s < 172800) return Math.floor(s / 3600) + ' h';
    return Math.floor(s / 86400) + ' d';
  }

  // plot returns the path of a line through the newest samples, with the present and the largest
  // value in seconds. Samples without the value are skipped.
  function plot(samples, key, width, height) {
    const points = samples.slice(-180).map((s, i) => [i, s[key]]).filter((p) => p[1] !== undefined);
    if (!points.length) return { path: '', area: '', now: undefined, max: 0 };
    const max = Math.max(...points.map((p) => p[1]));
    const last = Math.max(59, points[points.length - 1][0]);
    const shift = last - points[points.length - 1][0];
    const at = ([i, v]) => (((i + shift) / last) * width).toFixed(1) + ',' + (height - 2 - (v / (max || 1)) * (height - 4)).toFixed(1);
    const line = points.map(at).join('L');
    const edge = (p) => (((p[0] + shift) / last) * width).toFixed(1);
    return {
      path: 'M' + line, area: 'M' + edge(points[0]) + ',' + height + 'L' + line + 'L' + edge(points[points.length - 1]) + ',' + height + 'Z',
      now: points[points.length - 1][1], max,
    };
  }

  // FOLD is the longest time between two events of a container in one line.
  const FOLD = 10 * MINUTE;

  // fold returns lines for the newest events, at most so many, newest first. The restarts of a
  // container share one line, at the time of its newest start.
  function fold(events, most) {
    const lines = [];
    const restarting = new Map(); // lines of containers that were restarted, by pod and container
    for (let i = events.length - 1; i >= 0; i--) {
      const e = events[i];
      const key = !e.sandbox && e.container ? e.podUID + ' ' + e.container : '';
      const line = key && restarting.get(key);
      const at = time(e.time);
      if (line && line.oldest - at < FOLD && (e.event !== 'ContainerStarted' || e.restartCount)) {
        line.oldest = at;
        if (e.event === 'ContainerStarted') line.restarts++;
        if (e.event === 'ContainerDied' && !line.died) line.died = e;
        continue;
      }
      if (line) restarting.delete(key);
      if (lines.length === most) continue; // earlier events may still belong to a line
      const fresh = { newest: e, number: e.number, oldest: at, restarts: 0, died: null };
      if (key && e.event === 'ContainerStarted' && e.restartCount) {
        fresh.restarts = 1;
        restarting.set(key, fresh);
      }
      lines.push(fresh);
    }
    return lines;
  }

  // lineText describes a line in words.
  function lineText(line) {
    const text = eventText(line.newest);
    if (!line.died) return text;
    const end = eventText(line.died).text;
    return { ...text, text: end + (line.restarts > 1 ? ', restarted ' + line.restarts + ' times' : ', restarted') +
      ' (restart ' + line.newest.restartCount + ')' };
  }

  // eventText describes an event in words.
  function eventText(e) {
    const ended = e.event === 'ContainerDied' || e.event === 'PodSync' && e.exitCode !== undefined; // a PodSync corrects an end
    const verb = ended ? 'exited' : { ContainerStarted: 'started', ContainerRemoved: 'removed', PodSync: 'inspected again' }[e.event] || e.event;
    const what = e.sandbox ? 'sandbox' : printable(e.container || '');
    let how = '';
    if (ended && e.exitCode !== undefined) how = ' ' + e.exitCode + (e.reason ? ' ' + printable(e.reason) : '');
    if (e.event === 'ContainerDied' && e.exitCode === undefined && !e.sandbox) how = ', end not seen';
    if (e.event === 'ContainerStarted' && e.restartCount) how = ', restart ' + e.restartCount;
    return { pod: printable(e.pod ? e.namespace + '/' + e.pod : e.podUID), text: (what ? what + ' ' : '') + (e.event === 'ContainerDied' && e.sandbox ? 'stopped' : verb) + how };
  }

  function eventMark(e) {
    if (e.event === 'ContainerStarted') return ['▶', 'started'];
    if (e.event === 'ContainerRemoved') return ['┤', 'removed'];
    if (e.event === 'PodSync') return ['↻', 'sync'];
    if (e.sandbox) return ['■', 'done'];
    return e.exitCode === 0 ? ['✓', 'done'] : e.exitCode === undefined ? ['?', 'unknown'] : ['✕', 'crashed'];
  }

  return {
    WINDOWS, LONGEST_FIT, MARKS, newModel, apply, printable, list, counts, fit, split, laneHeight, layout, visible, place, bars,
    troubled, ticks, clock, instant, duration, plot, fold, lineText, eventText, eventMark, stateText, isForgotten, ranFor, time,
  };
})();
