import { totalmem } from 'node:os';
import { getHeapStatistics } from 'node:v8';

/** Bytes that this process has at its start: the limit of its container, else the memory of the host. */
const total = Math.min(totalmem(), process.constrainedMemory() || Infinity);
const heap = Math.min(total, getHeapStatistics().heap_size_limit);

/** Bounds in bytes on what clients without credentials can make the daemon hold. They leave heap for garbage and the rest. */
export const MEMORY = {
  total,
  /** Permits of callers; at most 170,000 of one limit with short keys. */
  permits: Math.min(2 ** 28, heap / 5),
  /** Open connections of one protocol; all protocols together may have half as many more. */
  connections: heap / 6,
  /** Input of all connections that is not answered, and replies that are not read. */
  held: Math.min(heap / 5, total / 8),
  /** Keys of all limits without `maxKeys` of their own, in typed arrays. */
  keys: total / 4,
} as const;
