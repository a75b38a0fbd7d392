// The stream: the page opens it, reads it, replaces it, and shows its state.

const STALLED = 5000; // there is a message a second
let source = null;
let heard = performance.now(); // when the last message came; before the first, when the page first asked
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

// askWhy finds out why a stream was refused; EventSource does not report it.
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

// The page replaces a connection that brings nothing, and one that the browser cannot open. An open
// connection has STALLED to bring a message, any other twice that.
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
