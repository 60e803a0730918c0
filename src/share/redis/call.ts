/** What goes into a call of the script, and what comes out of it. */

import { allow, type Decision, deny, NEVER, wait } from '../../decision.ts';
import type { Formula } from '../../policy/policy.ts';

/** One thing to do: its letter, the place of its key among the call's (1 first), and its numbers. */
export type Op = readonly (string | number)[];

/** Numbers as text lose nothing: JavaScript writes as many digits as it takes to read them back. */
export function argumentsOf(
  formulas: readonly Formula[],
  ops: readonly Op[],
  when: number | '' | `by ${number}` = '',
): string[] {
  const rules = formulas.flatMap(({ kind, numbers }) => [kind, numbers.length, ...numbers]);
  return [when, formulas.length, ...rules, ...ops.flat()].map(String);
}

/** The answer to an ask that stands at `at` in a reply. */
export function decisionOf(reply: readonly (string | number)[], at: number): Decision {
  const value = Number(reply[at + 1]);
  switch (Number(reply[at])) {
    case 0:
      return allow(value);
    case 1:
      return wait(value);
    default:
      return deny(value < 0 ? NEVER : value);
  }
}
