/** Tells the recorder of calls which limits a sampled call meets, or which list decides it. */

import type { Hasher } from '../../core/hash.ts';
import type { CallRecorder } from '../calls/call-recorder.ts';
import type { RoutedRequest } from './router.ts';

/** Limits are counted with their overrides and plans. */
export function recordCall(calls: CallRecorder, hasher: Hasher, request: RoutedRequest): void {
  const weight = calls.sampler.take();
  const { route, key, cost } = request;
  if (cost === 0) return; // takes nothing: a question
  const nameOf = (): string => key;
  // Addresses of one network are one key.
  if (route.countedKey !== undefined) hasher.hash(key);
  const hash = route.countedKey === undefined ? request : hasher;
  if (route.staticVerdict) {
    const { reason, limit } = route.staticVerdict;
    const about = { ...(limit !== undefined && { limit }), reason };
    calls.record(`${reason} ${limit ?? ''}`, about, hash, weight, nameOf);
  }
  for (const { limit } of route.applied) {
    const { name, shadow } = limit;
    const about = shadow ? ({ limit: name, shadow: true } as const) : undefined;
    calls.record(shadow ? `shadow ${name}` : name, about, hash, weight, nameOf);
  }
}
