import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS } from '../support/daemon.ts';

const fixture = daemonFixture();
afterAll(() => fixture.end());

const hasPython = spawnSync('python3', ['--version']).status === 0;
const [, snippet = ''] =
  /```python\n([\s\S]*?)```/.exec(readFileSync('docs/reference/daemon.md', 'utf8')) ?? [];

/** The decisions for a list of keys, given as a Python expression. */
function decide(socket: string, keys: string): boolean[] {
  // The snippet waits 20 ms for a reply; a busy machine may need longer.
  const code = `${snippet.replace('settimeout(0.02)', 'settimeout(5)')}
import json
print(json.dumps([is_allowed(key, ${JSON.stringify(socket)}) for key in ${keys}]))`;
  return JSON.parse(execFileSync('python3', ['-c', code], { encoding: 'utf8' }));
}

describe.skipIf(!hasPython)('Python client of docs/reference/daemon.md', () => {
  let socket = '';

  beforeAll(async () => {
    socket = join(fixture.place().path, 'line.sock');
    const limit = ['--rate', '1/h', '--burst', '3'];
    await fixture.start([...EPHEMERAL_PORTS, '--line', socket, ...limit]);
  });

  const allowed = (decisions: readonly boolean[]): number => decisions.filter(Boolean).length;

  test.each([
    ['a plain key', '[b"alice"] * 10', 3],
    ['a key with a newline', '[b"carol\\nfresh"] * 10', 3],
    ['a key that ends in newlines', '[b"alice\\n\\n\\n"] * 10', 3],
    ['a key of only a newline', '[b"\\n"] * 10', 3],
    ['a key beyond the bound of the daemon', '[b"a" * 5000] * 10', 3],
    ['a key of 1 MB', '[b"a" * 1000000] * 10', 3],
    ['a key with a carriage return', '[b"a\\r"] * 10', 3],
    ['an empty key', '[b""] * 10', 3],
  ])('%s is allowed as often as the limit says', (_, keys, expected) => {
    expect(allowed(decide(socket, keys))).toBe(expected);
  });

  test('keys that differ in what cannot be sent as it is are different keys', () => {
    const keys = '[b"b\\n", b"b\\r", b"b", b"b\\n\\n", b"b" * 5000, b"b" * 5001] * 3';
    expect(allowed(decide(socket, keys))).toBe(18);
  });

  test('a newline does not add a request for the key of another client', () => {
    decide(socket, '[b"x\\nvictim\\nvictim\\nvictim\\n"]');
    expect(decide(socket, '[b"victim"]')).toEqual([true]);
  });

  test('without a daemon every key is allowed', () => {
    expect(decide('/nowhere/line.sock', '[b"alice"] * 10')).toEqual(Array(10).fill(true));
  });
});
