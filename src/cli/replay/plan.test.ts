import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const place = createTempDir();
afterAll(() => place.remove());

/** A log with this number of calls for each key, at one instant. */
const traffic = (calls: Readonly<Record<string, number>>): string =>
  place.file(
    `log-${++files}`,
    Object.entries(calls)
      .flatMap(([ip, count]) => Array(count).fill(`{"ts":1791633600,"ip":"${ip}"}\n`))
      .join(''),
  );
let files = 0;

const perKey = (burst: number, more = ''): string =>
  place.file(
    `config-${++files}.yaml`,
    `limits: { a: { bucket: { rate: 1/h, burst: ${burst} } } }\n${more}`,
  );

async function plan(...words: string[]) {
  const { code, out, err } = await runCliAtAsync(120, ['plan', ...words]);
  return { code, out: out.join('\n'), err: err.join('\n') };
}

const LOG = { alice: 6, bob: 3, carol: 1 };

describe('sluice plan', () => {
  test('a tighter limit: says which keys are newly denied, and how many calls', async () => {
    const { code, out } = await plan(perKey(5), perKey(2), traffic(LOG), '--json');
    expect(code).toBe(0);
    expect(JSON.parse(out)).toMatchObject({
      calls: 10,
      keys: 3,
      flips: 4,
      flippedKeys: 2,
      deniedBefore: 1,
      deniedAfter: 5,
      newlyDenied: 4,
      newlyDeniedKeys: 2,
      newlyAllowed: 0,
      top: [
        { key: 'alice', calls: 6, deniedBefore: 1, deniedAfter: 4, newlyDenied: 3 },
        { key: 'bob', calls: 3, deniedBefore: 0, deniedAfter: 1, newlyDenied: 1 },
      ],
    });
  });

  test('a looser limit: newly allowed calls', async () => {
    const { out } = await plan(perKey(2), perKey(5), traffic(LOG), '--json');
    expect(JSON.parse(out)).toMatchObject({ newlyDenied: 0, newlyAllowed: 4, newlyAllowedKeys: 2 });
  });

  test('both directions: one key is denied by a list, another one no longer', async () => {
    const before = perKey(9, 'deny: [alice]');
    const after = perKey(9, 'deny: [bob]');
    const { out } = await plan(before, after, traffic(LOG));
    expect(out).toMatch(/^newly denied +3, 30\.0 % +1 key$/m);
    expect(out).toMatch(/^newly allowed +6, 60\.0 % +1 key$/m);
    expect(out).toMatch(/^bob +3 +0 +3 +3 +0 +2026-10-10 12:00:00$/m);
    expect(out).toMatch(/^alice +6 +6 +0 +0 +6 +2026-10-10 12:00:00$/m);
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(120);
  });

  test('the same configuration: no call flips', async () => {
    const { code, out } = await plan(perKey(2), perKey(2), traffic(LOG), '--max-flips', '0');
    expect(code).toBe(0);
    expect(out).toContain('no call flips between allow and deny');
  });

  test.each([
    ['--max-newly-denied', '3', 1],
    ['--max-newly-denied', '4', 0],
    ['--max-newly-denied', '39%', 1],
    ['--max-newly-denied', '40%', 0],
    ['--max-flips', '3', 1],
    ['--max-flips', '4', 0],
  ])('4 of 10 calls newly denied: %s %s gives exit code %i', async (flag, bound, expected) => {
    const { code, err } = await plan(perKey(5), perKey(2), traffic(LOG), flag, bound);
    expect(code).toBe(expected);
    const message = `4 calls of 10: more than ${flag} ${bound.replace('%', ' %')}`;
    expect(err.includes(message)).toBe(expected === 1);
  });

  test('--max-newly-denied does not count newly allowed calls, --max-flips does', async () => {
    const words = [perKey(2), perKey(5), traffic(LOG)];
    expect((await plan(...words, '--max-newly-denied', '0')).code).toBe(0);
    expect((await plan(...words, '--max-flips', '3')).code).toBe(1);
  });

  test('usage errors have exit code 2', async () => {
    expect(await plan('a.yaml', 'b.yaml')).toMatchObject({
      code: 2,
      err: expect.stringContaining('expected OLD.yaml, NEW.yaml and a LOG'),
    });
    const [valid, invalid] = [perKey(2), place.file('bad.yaml', 'limits: 7\n')];
    expect(await plan(valid, invalid, traffic(LOG))).toMatchObject({
      code: 2,
      err: expect.stringMatching(/bad\.yaml:1:1: expected `limits`/),
    });
    expect(await plan(valid, valid, traffic(LOG), '--max-flips', 'few')).toMatchObject({ code: 2 });
    expect((await plan(valid, 'none.yaml', traffic(LOG))).code).toBe(2);
  });
});
