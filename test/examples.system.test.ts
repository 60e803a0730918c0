import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';

// A process that is starved for longer than the provider's burst lasts gets replies 429.
test('examples/llm-quota.mjs: no reply 429 after the first second', () => {
  const out = execFileSync(process.execPath, ['examples/llm-quota.mjs'], { encoding: 'utf8' });
  expect(out).toContain('in the first second, 0 after it');
});
