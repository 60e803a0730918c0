import { NEVER, WHEN_SETTLED } from '../../core/decision.ts';

/** Removes floating-point noise: 0.30000000000000004 is 0.3. */
export const roundFloat = (value: number): number =>
  Number.isInteger(value) ? value : Number(value.toPrecision(12));

export function roundTo(value: number, decimals: number): number {
  const unit = 10 ** decimals;
  return Math.round(value * unit) / unit;
}

/** `0.125` as `12.5 %`, with a fixed number of decimals. */
export const formatPercent = (fraction: number, decimals: number): string =>
  `${(fraction * 100).toFixed(decimals)} %`;

/** At most 3 significant digits below 1000, at most 6 above. */
export const formatSignificant = (value: number): string =>
  String(Number(value.toPrecision(value < 1000 ? 3 : 6)));

export const formatDuration = (ms: number): string =>
  ms < 1000 ? `${formatSignificant(ms)} ms` : `${formatSignificant(ms / 1000)} s`;

const TIME_UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1000],
] as const;

/** A time for people, in its two largest units: `59 min 59 s`, `1 d 2 h`; below a minute as `formatDuration`. */
export function formatTime(ms: number): string {
  if (ms < 60_000) return formatDuration(ms);
  const at = TIME_UNITS.findIndex(([, unitMs]) => ms >= unitMs);
  const [[large, largeMs], [small, smallMs]] = TIME_UNITS.slice(at, at + 2);
  const total = Math.ceil(ms / smallMs) * smallMs; // not too early
  if (at > 0 && total >= TIME_UNITS[at - 1][1]) return formatTime(total);
  const rest = Math.round((total % largeMs) / smallMs);
  return `${Math.floor(total / largeMs)} ${large}${rest > 0 ? ` ${rest} ${small}` : ''}`;
}

/** A label of an axis: 0.25, 120, 5000, 20k, 3M. */
export function formatShort(value: number): string {
  const [unit, suffix] = value >= 1e6 ? [1e6, 'M'] : value >= 1e4 ? [1e3, 'k'] : [1, ''];
  return `${Number((value / unit).toPrecision(4))}${suffix}`;
}

/** The end of a refusal. A deny list also replies "never", so no reason is given. */
export function formatRetryAfter(retryAfterMs: number, retry: string): string {
  if (retryAfterMs === WHEN_SETTLED) return 'until a call settles';
  return retryAfterMs === NEVER ? 'never' : `${retry} ${retryAfterMs} ms`;
}
