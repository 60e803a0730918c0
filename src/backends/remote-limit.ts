import type { Millis } from '../core/clock.ts';
import { allow, type Decision, deny } from '../core/decision.ts';
import type { Random } from '../core/random.ts';
import type { Policy } from '../policies/policy.ts';
import { specsOf } from '../policies/rules.ts';
import type { RemoteBackendContext } from './remote-backend.ts';

/**
 * The part of a stored key that names the limit. A limit without a name is identified by its parameters, so two unnamed
 * limits share a count only if they are equal.
 */
export const limitIdOf = (
  { name, hasExplicitName }: RemoteBackendContext,
  policy: Policy,
): string =>
  hasExplicitName
    ? name
    : (specsOf(policy) ?? []).map(({ kind, params }) => `${kind} ${params.join(' ')}`).join('+');

/** The retry time of a refusal during an outage: the server may be available again by then. */
export const UNAVAILABLE_RETRY_MS: Millis = 500;

/** Fail open or fail closed: the decision while the server is unavailable. */
export const decideUnavailable = (onUnavailable: 'deny' | 'allow'): Decision =>
  onUnavailable === 'allow' ? allow(0) : deny(UNAVAILABLE_RETRY_MS);

/** A random id of at most 22 letters and digits. */
export const randomId = (random: Random): string =>
  [random(), random()].map((part) => Math.floor(part * 2 ** 53).toString(36)).join('');
