/** Every documented spelling of durations and rates: units from the table in docs/reference/, with plurals and spaces. */

import { readdirSync, readFileSync } from 'node:fs';

const PAGES = readdirSync('docs/reference').map((page) =>
  readFileSync(`docs/reference/${page}`, 'utf8'),
);
const [, table] = /^\| unit \| spellings \|\n([\s\S]*?)\n\n/m.exec(PAGES.join('\n')) ?? ['', ''];

const UNITS: readonly string[] = [...table.matchAll(/`([a-z]+)`/g)].flatMap(([, unit]) => {
  const isShort = /^(?:.|us|ms)$/.test(unit);
  return isShort ? [unit] : [unit, `${unit}s`];
});

export const DURATIONS: readonly string[] = UNITS.flatMap((unit) => [
  `6${unit}`,
  `1.5 ${unit}`,
  `.5${unit}`,
]);

export const RATES: readonly string[] = UNITS.flatMap((unit) => [
  `100/${unit}`,
  `100 / ${unit}`,
  `1.5/6${unit}`,
  `1 / 6 ${unit}`,
]);
