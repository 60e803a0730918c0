/** Calls of the library in one process: its CPU time for each call. */

import { measureInProcess } from './processes.mjs';

export const rows = [
  { name: 'check, one hot key', keys: 1 },
  { name: 'check, 1,000 keys', keys: 1000 },
  { name: 'check, 100,000 keys', keys: 100_000 },
  { name: 'check, 1,000,000 keys', keys: 1_000_000 },
  { name: 'tryAcquire and settle', call: 'permit' },
  { name: 'throttled function', call: 'throttled' },
  { name: 'all of two limiters', call: 'allOfTwo' },
];

export const spanMs = { short: 150, full: 500 };
export const secondsEach = 0.8;

export const prepare =
  async () =>
  async ({ folder }) => ({
    measure: (row, ms) => measureInProcess({ ...row, ms, folder, warmUpMs: 150 }),
    close() {},
  });
