// The state of the page, for the files below: what it knows, and what it shows of that.

const P = PLEGZ;
const model = P.newModel();
const filter = { name: '', namespace: '', state: '', order: 'name', window: 'auto', rows: 'auto' };
let paused = false;
let chosen = ''; // UID of the lane with the focus
let detailed = ''; // UID of the pod whose detail is open
let pods = []; // in their order
let tops = [0];
let compact = false; // true while a pod has one row
let inView = new Set(); // UIDs of the lanes that are seen

const isNarrow = matchMedia('(max-width: 800px)');
