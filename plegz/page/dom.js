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

// say has a screen reader say something. What it reads out is not what is seen, where a time
// changes every second.
function say(text) {
  setText($('spoken'), text);
}
