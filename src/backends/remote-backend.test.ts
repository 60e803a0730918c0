import { describe, expect, test } from 'vitest';
import { allow, deny } from '../core/decision.ts';
import { toBatchDecision } from './remote-backend.ts';

describe('toBatchDecision', () => {
  test('toBatchDecision: a grant keeps its deadline and its lease, as lists of one', () => {
    const grant = { decision: allow(3), decidedAt: 100, usableUntil: 105, leaseId: 'a/1' };
    expect(toBatchDecision(grant)).toEqual({
      granted: 1,
      refusal: undefined,
      decidedAt: 100,
      usableUntils: [105],
      leaseIds: ['a/1'],
    });
  });

  test('toBatchDecision: a refusal carries no deadline and no lease', () => {
    const refused = {
      decision: deny(7),
      decidedAt: 100,
      usableUntil: Infinity,
      fromFallback: true,
    };
    expect(toBatchDecision(refused)).toEqual({
      granted: 0,
      refusal: deny(7),
      decidedAt: 100,
      fromFallback: true,
    });
  });
});
