import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const SHOWN = /```\n\$ sluice ((?:replay|plan) .*)\n([\s\S]*?)```/g;

describe('docs/how-to/replay-traffic.md', () => {
  const shown = [...readFileSync('docs/how-to/replay-traffic.md', 'utf8').matchAll(SHOWN)].map(
    ([, command, printed]) => ({ command, printed }),
  );

  test('shows replay and plan', () => expect(shown.length).toBeGreaterThan(3));

  test.each(shown)('shows what sluice $command prints', async ({ command, printed }) => {
    const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(
      ([, quoted, word]) => quoted ?? word,
    );
    const { code, out } = await runCliAtAsync(100, words);
    expect(code).toBe(0);
    expect(out.join('\n').trimEnd()).toBe(printed.trimEnd());
  });
});
