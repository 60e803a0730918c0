/** Rules for all commands, which are found by reading the help texts. */

import { describe, expect, test } from 'vitest';
import { runCliAtAsync, sluice } from '../../test/support/terminal.ts';

/** The words of every command that help lists, nested ones included. */
function commandsUnder(words: readonly string[]): string[][] {
  const { out } = sluice(...words, '--help');
  if (!out.includes('<command>')) return [[...words]];
  const names = [...out.matchAll(/^ {2}([a-z]+) {2,}\S/gm)].map(([, name]) => name);
  return names.flatMap((name) => commandsUnder([...words, name]));
}

const commands = commandsUnder([]);

/** Arguments that no command accepts. */
const INVALID: readonly (readonly string[])[] = [['--nonsense'], ['one', 'two', 'three']];

describe('every command', () => {
  test('is listed by help', () => {
    expect(commands.map((words) => words.join(' '))).toEqual(
      expect.arrayContaining(['serve', 'check', 'config check', 'trace', 'simulate peers']),
    );
  });

  test.each(commands.map((words) => [words.join(' '), words] as const))(
    '%s: prints help with exit code 0, and a usage error in one line with exit code 2',
    async (name, words) => {
      const { code, out, err } = sluice(...words, '--help');
      expect({ code, err }).toEqual({ code: 0, err: '' });
      expect(out).toContain(`usage: sluice ${name}`);
      for (const invalid of INVALID) {
        const result = await runCliAtAsync(100, [...words, ...invalid]);
        expect({ code: result.code, out: result.out }).toEqual({ code: 2, out: [] });
        expect(result.err).toEqual([expect.stringMatching(`^sluice ${name}: `)]);
      }
    },
  );
});
