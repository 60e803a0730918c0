import { writeFileSync } from 'node:fs';
import { afterEach, expect, test } from 'vitest';
import { loadConfig, parseConfigText } from '../../src/daemon/config/file.ts';
import { Daemon } from '../../src/daemon/daemon.ts';
import { countAllowed, daemonFixture, EPHEMERAL_PORTS } from '../support/daemon.ts';

const { start, place, end } = daemonFixture();
afterEach(end);

const VALID = 'limits: { all: { bucket: { rate: 1/h, burst: 3 } } }\n';

test('configuration: deep nesting, reloaded again and again, is refused and the daemon lives', async () => {
  const file = place().file('sluice.yaml', VALID);
  const daemon = await start([...EPHEMERAL_PORTS, '--config', file]);
  expect(await countAllowed(daemon, 'alice', 2)).toBe(2);
  for (const depth of [3000, 3000, 1000, 8000, 3000]) {
    writeFileSync(file, `limits: ${'['.repeat(depth)}${']'.repeat(depth)}`);
    const reply = await fetch(`http://${daemon.addresses.http[0]}/reload`, { method: 'POST' });
    expect(reply.status).toBe(422);
    expect(await reply.text()).toContain('expected at most 64 levels of nesting');
  }
  writeFileSync(file, VALID);
  const reply = await fetch(`http://${daemon.addresses.http[0]}/reload`, { method: 'POST' });
  expect(reply.status).toBe(200);
  expect(await countAllowed(daemon, 'alice', 5)).toBe(1); // its count was kept
});

test('reload: a flood of requests reads the configuration a few times, and each gets a result', async () => {
  const loaded = parseConfigText('x.yaml', `listen: { line: off, resp: off, http: 0 }\n${VALID}`);
  if ('problems' in loaded) return expect.unreachable(loaded.problems.join());
  let loads = 0;
  const load = () => {
    loads++;
    return loaded;
  };
  const daemon = await Daemon.start(loaded.config, { log: () => {}, load, version: '0' });
  const results = await Promise.all(Array.from({ length: 1000 }, () => daemon.reload()));
  const last = await daemon.reload();
  await daemon.stop();
  expect(new Set(results.map(({ ok }) => ok))).toEqual(new Set([true]));
  expect(last.ok).toBe(true);
  expect(loads).toBeLessThanOrEqual(3);
});

test('configuration: a file without end is refused', () => {
  expect(loadConfig('/dev/zero', [])).toEqual({
    problems: ['/dev/zero is too large to be a configuration'],
  });
});

test.each([
  ['nesting', `allow: ${'['.repeat(63)}${']'.repeat(63)}`, '`allow'],
  ['aliases', `allow: [&a x${', *a'.repeat(100)}]`, undefined],
  ['list items', `allow: [${'x, '.repeat(20_000)}]`, undefined],
])('configuration: %s within the bound reach the reader', (_, text, expected) => {
  const result = parseConfigText('x.yaml', text);
  if (expected === undefined) expect(result).toHaveProperty('config');
  else expect(result).toMatchObject({ problems: [expect.stringContaining(expected)] });
});
