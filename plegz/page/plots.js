// The plots of the samples.

const PLOTS = [
  { key: 'relist', title: 'relist takes' },
  { key: 'relistAge', title: 'last relist began', suffix: ' ago', unless: 'relist' },
  { key: 'inspection', title: 'inspection call takes' },
  { key: 'oldestCall', title: 'oldest call in flight' },
];

function drawPlots() {
  const has = (key) => model.samples.some((s) => s[key] !== undefined);
  const shown = PLOTS.filter((p) => has(p.key) && !(p.unless && has(p.unless)));
  const plots = $('plots');
  const keys = shown.map((p) => p.key).join();
  if (plots.dataset.keys !== keys) {
    plots.dataset.keys = keys;
    plots.replaceChildren(...shown.map((p) => {
      const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      svg.setAttribute('viewBox', '0 0 300 34');
      svg.setAttribute('preserveAspectRatio', 'none');
      svg.setAttribute('aria-hidden', 'true');
      for (const c of ['area', 'line']) {
        const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
        path.setAttribute('class', c);
        svg.append(path);
      }
      return element('figure', {}, element('figcaption', {}, p.title, element('strong'), element('span')), svg);
    }));
  }
  shown.forEach((p, i) => {
    const figure = plots.children[i];
    const plot = P.plot(model.samples, p.key, 300, 34);
    const [area, line] = figure.querySelectorAll('path');
    area.setAttribute('d', plot.area);
    line.setAttribute('d', plot.path);
    setText(figure.querySelector('strong'), plot.now === undefined ? '–' : plot.now === 0 ? 'none' : P.duration(plot.now * 1000) + (p.suffix || ''));
    setText(figure.querySelector('span'), plot.max ? 'at most ' + P.duration(plot.max * 1000) : 'in the last minutes');
  });
}
