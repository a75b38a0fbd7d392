// Keys that work wherever the focus is.

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $('detail').open) return;
  if (e.key === 'Escape' && e.target === $('name')) {
    $('name').value = '';
    setFilter({ name: '' });
    lanes.focus();
    return;
  }
  if (e.target.matches('input, select')) return;
  if (e.key === '/') {
    $('name').focus();
    e.preventDefault();
  } else if (e.key === 'p') togglePause();
  else if (['ArrowDown', 'ArrowUp', 'PageDown', 'PageUp', 'Home', 'End'].includes(e.key) && e.target === document.body) {
    lanes.focus();
    lanes.dispatchEvent(new KeyboardEvent('keydown', { key: e.key }));
    e.preventDefault();
  }
});
