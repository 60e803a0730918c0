/** What all commands have in common, however many there are: found as a user finds them, by asking for help. */

import { describe, expect, test } from 'vitest';
import { runCliAtAsync, sluice } from '../../test/support/terminal.ts';

/** The words of every command: those that help lists, and below them. */
function commandsUnder(words: readonly string[]): string[][] {
  const { out } = sluice(...words, '--help');
  if (!out.includes('<command>')) return [[...words]];
  const names = [...out.matchAll(/^ {2}([a-z]+) {2,}\S/gm)].map(([, name]) => name);
  return names.flatMap((name) => commandsUnder([...words, name]));
}

const commands = commandsUnder([]);

/** What no command can make sense of. */
const WRONG: readonly (readonly string[])[] = [['--nonsense'], ['one', 'two', 'three']];

describe('every command', () => {
  test('is found', () => {
    expect(commands.map((words) => words.join(' '))).toEqual(
      expect.arrayContaining(['serve', 'check', 'config check', 'trace', 'simulate peers']),
    );
  });

  test.each(commands.map((words) => [words.join(' '), words] as const))(
    '%s teaches with exit code 0, and ends with 2 and one line if it cannot run as asked',
    async (name, words) => {
      const { code, out, err } = sluice(...words, '--help');
      expect({ code, err }).toEqual({ code: 0, err: '' });
      expect(out).toContain(`usage: sluice ${name}`);
      for (const wrong of WRONG) {
        const told = await runCliAtAsync(100, [...words, ...wrong]);
        expect({ code: told.code, out: told.out }).toEqual({ code: 2, out: [] });
        expect(told.err).toEqual([expect.stringMatching(`^sluice ${name}: `)]);
      }
    },
  );
});
