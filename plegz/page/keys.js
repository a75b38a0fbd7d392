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
});
