/**
 * The forms in which registers hold rules: their instants can be converted between clocks.
 *
 *     bucket, lockout   unchanged: one instant
 *     spacing           the interval is widened by the drift of a reader's clock
 *     window, ramp      on a clock in the register (`elapsed-time.ts`); the window is widened by the drift
 *     quota             on the calendar: each process uses its own wall clock; the register starts each period once
 *     all               its rules in these forms
 */

import type { Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import { all } from '../../policies/all.ts';
import type { Policy } from '../../policies/policy.ts';
import { asRule, isJoint } from '../../policies/rules.ts';
import { spacing } from '../../policies/spacing.ts';
import { window } from '../../policies/window.ts';
import { onElapsedTime } from './elapsed-time.ts';

/** Drift of the writer's clock, of a reader's clock, and of the bound between both. */
const DRIFT_FACTOR = 1 + 3 * CLOCK_DRIFT_RATE;

/** The largest error between wall clocks: a register of a quota outlives its period by this time. */
const MAX_CLOCK_ERROR_MS: Millis = 60_000;

/** Converts a policy; `startToleranceMs` is added to the interval of a spacing. */
export function registerRule(policy: Policy, startToleranceMs: Millis): Policy {
  // Within `all`, a permit is deferred to the latest instant at which it may start, which includes the tolerance.
  if (isJoint(policy)) return all(policy.rules.map((one) => registerRule(one.policy, 0)));
  return FORMS[policy.kind]?.(policy, startToleranceMs) ?? policy;
}

function widened({ rules: [{ spec }] }: Policy, byMs: Millis): Policy {
  const [everyMs, reserve, expireMs] = spec?.params ?? [];
  const expire = expireMs < Infinity ? { expire: expireMs } : {};
  return spacing({ every: everyMs * (1 + CLOCK_DRIFT_RATE) + byMs, reserve, ...expire });
}

function windowOnElapsedTime({ rules: [{ spec }] }: Policy): Policy {
  const [limit, steps, stepMs, lendMs] = spec?.params ?? [];
  const perMs = steps * stepMs;
  const inner = window({ limit, per: perMs * DRIFT_FACTOR, steps });
  const traits = { ...inner.traits, refillMs: perMs + stepMs };
  return onElapsedTime({ ...inner, traits, divide: { ...inner.divide, lendMs } }, spec, perMs);
}

function onCalendar(policy: Policy): Policy {
  return asRule(policy.rules[0].spec, {
    ...policy,
    traits: { ...policy.traits, instants: [] },
    init(state, i, now, freshAt) {
      policy.init(state, i, now, freshAt);
      policy.update(state, i, { hits: 0 }, now); // a register cannot hold NaN
    },
    freshAt: (state, i, isLenient) =>
      policy.freshAt(state, i, isLenient) + (isLenient ? 0 : MAX_CLOCK_ERROR_MS),
  });
}

const FORMS: Readonly<Record<string, (policy: Policy, startToleranceMs: Millis) => Policy>> = {
  bucket: (policy) => policy,
  spacing: widened,
  window: windowOnElapsedTime,
  quota: onCalendar,
  ramp: (policy) => onElapsedTime(policy),
  lockout: (policy) => policy,
};

/** Kinds of which registers have a form. */
export const REGISTER_KINDS: readonly string[] = Object.keys(FORMS);
