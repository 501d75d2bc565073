// @ts-check
/** CPU and memory of a running task: the last values, and a thin line of each over the run. */
import { s, sizeWords } from './forms.js';
import { t } from './language.js';

/** @import {Sample} from './types.js' */

const WIDTH = 64;

/** Of one core. @param {number} load */
const percent = (load) => `${Math.round(load * 100)} %`;

/** A line, as high as its top. @param {string} label @param {number[]} times @param {number[]} values */
function line(label, times, values) {
  const [end, top] = [Math.max(...times), Math.max(1, ...values)];
  return s('svg', { role: 'img', 'aria-label': label, width: WIDTH, height: 16 },
    s('polyline', { fill: 'none', stroke: 'currentColor', points: values.map((value, place) => (
      [times[place] / end * WIDTH, 15 - value / top * 14])).join(' ') }));
}

/** Shows two samples or more, if there is a new one. @param {HTMLElement} root @param {Sample[]} samples */
export function showSamples(root, samples) {
  const times = samples.map(({ seconds }) => seconds);
  const end = String(times[times.length - 1]);
  if (root.firstChild && root.dataset.end === end) return;
  root.dataset.end = end;
  const sizes = samples.map(({ memory }) => memory);
  const loads = samples.map(({ seconds, cpu_seconds: cpu }, place) => {
    const before = samples[place - 1] || { seconds: 0, cpu_seconds: 0 };
    return (cpu - before.cpu_seconds) / (seconds - before.seconds || 1);
  });
  root.replaceChildren(
    `CPU ${percent(loads[loads.length - 1])}`,
    line(t('CPU over the run: at most {most}', { most: percent(Math.max(...loads)) }), times, loads),
    `· ${sizeWords(sizes[sizes.length - 1])}`,
    line(t('Memory over the run: at most {most}', { most: sizeWords(Math.max(...sizes)) }), times, sizes));
}
