import type { DeniedKey } from './report.ts';

const COLUMNS = ['key', 'calls', 'denied', 'share', 'firstDenied', 'lastDenied'] as const;

export const csvLines = (keys: readonly DeniedKey[]): string[] => [
  COLUMNS.join(','),
  ...keys.map((key) => COLUMNS.map((name) => cellOf(key[name])).join(',')),
];

/** A spreadsheet would run a text that begins like a formula. */
const FORMULA = /^[=+\-@\t\r]/;

function cellOf(value: string | number): string {
  if (typeof value === 'number') return String(Number(value.toFixed(6)));
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
