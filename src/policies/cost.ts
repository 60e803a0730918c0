import { ConfigError } from '../core/errors.ts';

/** A cost is what a call weighs: zero or more. Infinity is one that can never fit. */
export function requireCost(cost: unknown): void {
  if (!(typeof cost === 'number' && cost >= 0))
    throw new ConfigError('cost', 'a number of at least 0', cost);
}
