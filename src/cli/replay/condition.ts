import { readPattern } from '../../daemon/keys/pattern.ts';
import { CommandError } from '../framework/command.ts';
import type { LineFormat } from './line-format.ts';

export interface Condition {
  readonly field: string;
  readonly isNegated: boolean;
  matches(text: string): boolean;
}

/** @throws {CommandError} */
export function parseCondition(text: string): Condition {
  const [, field, not, value] = /^([^=!]+)(!?)=(.*)$/s.exec(text) ?? [];
  if (field === undefined)
    throw new CommandError(
      `expected \`--where\` to be FIELD=VALUE or FIELD!=VALUE, with * for anything, got "${text}"`,
    );
  const pattern = value === '' ? undefined : readPattern(value, '--where');
  return {
    field: field.trim(),
    isNegated: not === '!',
    matches: (candidate) => (pattern ? pattern.matches(candidate) : candidate === ''),
  };
}

/** Whether the current line of a log counts. */
export function compileConditions(
  conditions: readonly Condition[],
  format: LineFormat,
): () => boolean {
  const tests = conditions.map((condition) => ({
    condition,
    field: format.field(condition.field),
  }));
  return () =>
    tests.every(
      ({ condition, field }) => condition.matches(field.text() ?? '') !== condition.isNegated,
    );
}
