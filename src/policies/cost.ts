import { ConfigError } from '../core/errors.ts';

/** A cost is zero or more. Infinity is valid and never fits. */
export function requireCost(cost: unknown): void {
  if (!(typeof cost === 'number' && cost >= 0))
    throw new ConfigError('cost', 'a number of at least 0', cost);
}
