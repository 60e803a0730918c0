/** Numbers, times and rules as short text. */

import type { SourceName } from '../../src/daemon/key-counts/sources.ts';

/** `12.3 k`. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

export const percent = (fraction: number): string =>
  `${(fraction * 100).toFixed(fraction < 0.1 && fraction > 0 ? 1 : 0)} %`;

/** `3 min 20 s`. JSON has null for a time that never comes. */
export function duration(ms: number | null | undefined): string {
  if (ms === null) return 'never';
  if (ms === undefined) return 'when a call ends';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400)
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** `08:05:30`. */
export const clockTime = (ms: number): string =>
  new Date(ms).toLocaleTimeString(undefined, { hourCycle: 'h23' });

/** `08:05`. */
export const minuteTime = (ms: number): string =>
  new Date(ms).toLocaleTimeString(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23',
  });

/** `bucket: rate 10/s, burst 20`. */
export function ruleText(rule: unknown): string {
  if (typeof rule !== 'object' || rule === null) return String(rule);
  return Object.entries(rule)
    .map(([kind, options]) =>
      Array.isArray(options)
        ? `${kind} of ${options.map(ruleText).join('; ')}`
        : typeof options === 'object' && options !== null
          ? `${kind}: ${optionsText(options) || 'defaults'}`
          : `${kind}: ${options}`,
    )
    .join(', ');
}

const optionsText = (options: object): string =>
  Object.entries(options)
    .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : value}`)
    .join(', ');

export const causeText = ({ limit, reason, command }: SourceName): string =>
  [reason, limit ?? command].filter((word) => word !== undefined).join(' of ');
