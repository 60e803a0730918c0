import { afterEach, describe, expect, test } from 'vitest';
import { ProtocolClient, respCommand } from '../../../../test/support/small-daemon.ts';
import { virtualDaemons } from '../../../../test/support/virtual-daemon.ts';
import { GcraTable } from '../../../backends/local/gcra-table.ts';
import { createHasher } from '../../../core/hash.ts';
import { respProtocol } from './handler.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const LIMITS = `limits:
  api: { bucket: { rate: 1/h, burst: 20 } }
  jobs: { concurrency: 5, match: 'job:*' }`;

/** A connection of an operator. */
async function setUp() {
  const { daemon, controls, clock } = await start(LIMITS, undefined, '');
  const { router } = daemon;
  const gcraTable = new GcraTable({
    hasher: createHasher([1, 2], 'latin1'),
    clock,
    maxKeys: 1000,
  });
  const adminToken = (): string => 'secret';
  const context = { router, controls, adminToken, gcraTable, version: '0.0.0', clock };
  const client = new ProtocolClient(respProtocol(context));
  const run = async (...args: string[]): Promise<string> => {
    client.send(respCommand(...args));
    for (let turns = 0; turns < 20; turns++) {
      await new Promise(setImmediate);
      const text = client.takeReceived();
      if (text !== '') return text.trimEnd();
    }
    throw new Error(`no reply to ${args}`);
  };
  expect(await run('AUTH', 'admin', 'secret')).toBe('+OK');
  return { run, controls };
}

describe('SLUICE.OVERRIDE', () => {
  test.each([
    [['100/s', '60'], { limit: 'api', rule: { bucket: { rate: '100/s' } } }],
    [['100/s', '60', 'api'], { limit: 'api', rule: { bucket: { rate: '100/s' } } }],
    [['100/s', '60', 'BURST', '500'], { rule: { bucket: { rate: '100/s', burst: 500 } } }],
    [
      ['100/s', '60', 'api', 'burst', '2.5', 'NOTE', 'why not'],
      { rule: { bucket: { rate: '100/s', burst: 2.5 } }, note: 'why not' },
    ],
    [['100/s', '60', 'NOTE', 'x', 'LIMIT', 'api'], { limit: 'api', note: 'x' }],
    [
      ['{"window": {"limit": 5, "per": "1m"}}', '60'],
      { rule: { window: { limit: 5, per: '1m' } } },
    ],
  ])('%j: the override of HTTP and the command line', async (args, expected) => {
    const { run, controls } = await setUp();
    expect(await run('SLUICE.OVERRIDE', 'zoe', ...args)).toBe('+OK');
    expect(controls.list()).toMatchObject([{ kind: 'override', key: 'zoe', ...expected }]);
  });

  test('EXACT: a key that reads like a pattern, for override, its removal and reset', async () => {
    const { run, controls } = await setUp();
    const override = ['SLUICE.OVERRIDE', 'a*b', '100/s', '60'];
    expect(await run(...override)).toContain('add EXACT for a key that contains * or ?');
    expect(await run(...override, 'BURST', '7', 'EXACT')).toBe('+OK');
    expect(controls.list()).toHaveLength(1);
    expect(await run('SLUICE.RESET', 'a*b', 'api')).toContain('add EXACT');
    expect(await run('SLUICE.RESET', 'a*b', 'api', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.RESET', 'a*b', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.REMOVEOVERRIDE', 'a*b', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.REMOVEOVERRIDE', 'a*b', 'LIMIT', 'api', 'EXACT')).toBe(':0');
  });

  test.each([
    [['100/s', '60', 'api', 'BURST'], 'ERR syntax error'],
    [['100/s', '60', 'api', 'more'], 'ERR syntax error'],
    [['100/s', '60', 'BURST', '1', 'BURST', '2'], 'ERR syntax error'],
    [['100/s', '60', 'BURST', 'x'], 'expected `burst` to be'],
    [['{"window":', '60'], 'expected `rule` to be JSON'],
    [['{"window": {"limit": 5, "per": "1m"}}', '60', 'BURST', '9'], '`rule` to be left out'],
    [['fast', '60'], '`rate`'],
  ])('%j: an error that names what is wrong', async (args, message) => {
    const { run, controls } = await setUp();
    expect(await run('SLUICE.OVERRIDE', 'zoe', ...args)).toContain(message);
    expect(controls.list()).toEqual([]);
  });
});
