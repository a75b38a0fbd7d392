// Elements of the document.

const $ = (id) => document.getElementById(id);

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

// fill sets the rows of a table, unless nothing has changed.
function fill(table, heading, rows, warn) {
  const now = JSON.stringify(rows);
  if (table.dataset.shown === now) return;
  table.dataset.shown = now;
  table.replaceChildren(
    element('thead', {}, element('tr', {}, ...heading.map((h) => element('th', { scope: 'col' }, h)))),
    element('tbody', {}, ...rows.map((row) => element('tr', {}, ...row.map((cell, i) => element('td',
      { class: i === 1 && warn && warn(row) ? 'behind' : '' }, element('bdi', {}, P.printable(cell))))))));
}

// copyable displays a text, or shown instead, with a button that copies the text.
function copyable(text, shown) {
  const button = element('button', { type: 'button', class: 'copy', 'aria-label': 'Copy ' + P.printable(shown || text) }, 'Copy');
  button.addEventListener('click', (e) => {
    e.stopPropagation();
    const done = () => {
      setText(button, 'Copied');
      setTimeout(() => setText(button, 'Copy'), 1500);
    };
    // The clipboard needs a secure context. Over plain HTTP from another machine, the text is
    // selected instead.
    const select = () => getSelection().selectAllChildren(button.previousElementSibling);
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
    else select();
  });
  return element('span', { class: 'copyable' }, element('code', {}, P.printable(shown || text)), button);
}

// say makes a screen reader read a text out. What is seen is not read out, because its times change
// every second.
function say(text) {
  setText($('spoken'), text);
}
