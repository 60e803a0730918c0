import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import { countAllowed, daemonFixture, exchange, type RunningDaemon } from './support/daemon.ts';
import { redisServer, startRedis } from './support/services.ts';

const { start, place, serve, end } = daemonFixture();

afterEach(end);

const EPHEMERAL = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

/** Starts a daemon with `sluice.yaml` and other files; `write` changes one of them. */
async function startWith(config: string, files: Readonly<Record<string, string>> = {}) {
  const dir = place();
  mkdirSync(join(dir.path, 'limits.d'));
  for (const [name, text] of Object.entries(files)) dir.file(name, text);
  const daemon = await start([...EPHEMERAL, '--config', dir.file('sluice.yaml', config)]);
  return { daemon, write: (name: string, text: string) => dir.file(name, text) };
}

const http = (daemon: RunningDaemon, path: string, init: RequestInit = {}): Promise<Response> =>
  fetch(`http://${daemon.addresses.http[0]}${path}`, init);

const reload = async (daemon: RunningDaemon): Promise<{ status: number; text: string }> => {
  const response = await http(daemon, '/reload', { method: 'POST' });
  return { status: response.status, text: await response.text() };
};

/** The first element of the reply of SLUICE.CHECK: 1 allowed, 0 refused. */
const respCheck = async (daemon: RunningDaemon, limit: string, key: string): Promise<string> => {
  const reply = await exchange(daemon.addresses.resp[0], `SLUICE.CHECK ${limit} ${key}\r\n`);
  return reply.split('\r\n')[1] ?? reply;
};

describe('overrides', () => {
  const overrides = (burst: number): string => {
    const one = (n: number) =>
      `      - { match: customer-${n}-secret, bucket: { rate: 1/h, burst: ${burst + (n % 3)} } }`;
    return Array.from({ length: 1000 }, (_, n) => one(n)).join('\n');
  };
  const config = (more = ''): string =>
    `limits:\n  api:\n    bucket: { rate: 1/h, burst: 1 }\n    overrides:\n${overrides(2)}\n${more}`;

  test('a thousand with three rules: no response, label or page has a key, and a reload keeps counts', async () => {
    const { daemon, write } = await startWith(config());
    expect(await countAllowed(daemon, 'customer-5-secret', 9)).toBe(4);
    const refused = await http(daemon, '/check?key=customer-5-secret');
    expect(refused.status).toBe(429);
    const pages = await Promise.all(
      ['/metrics', '/limits'].map(async (path) => (await http(daemon, path)).text()),
    );
    const shown = [JSON.stringify([...refused.headers]), await refused.text(), ...pages].join('\n');
    expect(shown).toContain('api[bucket 1/h, burst 4]');
    expect(shown).not.toContain('customer-');
    expect(pages[0]).toContain('sluice_limits{shown="yes"} 4\n');
    write('sluice.yaml', config('      - { match: new, bucket: { rate: 1/h, burst: 9 } }\n'));
    expect(await reload(daemon)).toEqual({ status: 200, text: expect.any(String) });
    expect(await countAllowed(daemon, 'customer-5-secret', 9)).toBe(0);
    expect(await countAllowed(daemon, 'new', 20)).toBe(9);
    const explained = await (await http(daemon, '/explain?key=customer-5-secret')).text();
    expect(explained).toContain('has an override for customer-5-secret');
  });
});

describe('networks and files', () => {
  test('a deny list from a file: networks are denied, and a reload reads it again', async () => {
    const lines = Array.from({ length: 20_000 }, (_, n) => `10.${n >> 8}.${n & 255}.0/24`);
    const { daemon, write } = await startWith(
      "deny: [{ file: blocked.txt, prefix: 'ip:' }]\nlimits: { api: { bucket: { rate: 1/h, burst: 3 } } }\n",
      { 'blocked.txt': `# networks\n${lines.join('\n')}\n` },
    );
    expect(await countAllowed(daemon, 'ip:10.7.7.7', 5)).toBe(0);
    expect(await countAllowed(daemon, 'ip:::ffff:10.7.7.7', 5)).toBe(0);
    expect(await countAllowed(daemon, 'ip:11.7.7.7', 5)).toBe(3);
    write('blocked.txt', '10.1.2.3/8\n');
    const failed = await reload(daemon);
    expect(failed.status).toBe(422);
    expect(failed.text).toContain('blocked.txt:1: expected a network without host bits');
    expect(await countAllowed(daemon, 'ip:10.7.7.7', 5)).toBe(0);
    write('blocked.txt', '11.0.0.0/8 # others now\n');
    expect((await reload(daemon)).status).toBe(200);
    expect(await countAllowed(daemon, 'ip:10.7.7.7', 5)).toBe(3);
    expect(await countAllowed(daemon, 'ip:11.7.7.7', 5)).toBe(0);
  });

  test('included files: their limits apply, and a reload finds new ones', async () => {
    const { daemon, write } = await startWith("include: ['limits.d/*.yaml']\nunmatched: deny\n", {
      'limits.d/a.yaml': "limits: { a: { bucket: { rate: 1/h, burst: 2 }, match: 'a*' } }\n",
    });
    expect(await countAllowed(daemon, 'a', 5)).toBe(2);
    expect(await countAllowed(daemon, 'b', 5)).toBe(0);
    write('limits.d/b.yaml', "limits: { b: { bucket: { rate: 1/h, burst: 3 }, match: 'b*' } }\n");
    expect((await reload(daemon)).status).toBe(200);
    expect(await countAllowed(daemon, 'a', 5)).toBe(0);
    expect(await countAllowed(daemon, 'b', 5)).toBe(3);
  });
});

describe('plans', () => {
  const CONFIG = `
http: { planHeader: X-Plan }
plans:
  free: { bucket: { rate: 1/h, burst: 2 } }
  pro: { bucket: { rate: 1/h, burst: 4 } }
planFile: plans.csv
limits:
  api: { bucket: { rate: 1/h, burst: 1 }, plans: true }
`;
  const statuses = async (
    daemon: RunningDaemon,
    path: string,
    headers = {},
  ): Promise<readonly number[]> => {
    const found: number[] = [];
    for (let n = 0; n < 5; n++) found.push((await http(daemon, path, { headers })).status);
    return found;
  };

  test('plan named over HTTP, RESP, the client and the command line: its rule applies', async () => {
    const { daemon } = await startWith(CONFIG, { 'plans.csv': 'alice,free\n' });
    expect(await statuses(daemon, '/check?key=a&plan=pro')).toEqual([200, 200, 200, 200, 429]);
    expect(await statuses(daemon, '/check?key=b', { 'x-plan': 'free' })).toEqual([
      ...[200, 200, 429, 429, 429],
    ]);
    expect(await statuses(daemon, '/check?key=c&plan=gold')).toEqual([400, 400, 400, 400, 400]);
    const joint = '/check?check=api[pro]@2,j&check=api[pro]@2,j';
    expect((await statuses(daemon, joint)).slice(0, 2)).toEqual([200, 429]);
    const send = (command: string): Promise<string> =>
      exchange(daemon.addresses.resp[0], `${command}\r\n`);
    expect(await send('SLUICE.CHECK api d 4 PLAN pro')).toMatch(/^\*6\r\n:1\r\n:0\r\n/);
    expect(await send('SLUICE.CHECK * d 1 HOLD PLAN pro')).toContain('api[pro]');
    expect(await send('SLUICE.CHECK api d PLAN gold')).toMatch(/^-ERR no plan is named 'gold'/);
    expect(await send('SLUICE.TAKEUPTO api[pro] e 9')).toMatch(/^\*2\r\n:4\r\n/);
    const client = connect({ at: daemon.addresses.resp[0], deadline: '5s', onUnavailable: 'deny' });
    try {
      const first = await client.check('f', 4, { plan: 'pro' });
      expect(first).toMatchObject({ verdict: 'allow', remaining: 0 });
      expect(await client.check('f', 1, { limit: 'api', plan: 'pro' })).toMatchObject({
        verdict: 'deny',
        limit: 'api[pro]',
      });
      await expect(client.check('f', 1, { plan: 'gold' })).rejects.toThrow(
        "no plan is named 'gold'",
      );
    } finally {
      await client.close();
    }
    const args = ['dist/bin/sluice.js', 'check', 'g', '--at', daemon.addresses.resp[0]];
    const run = spawnSync(process.execPath, [
      ...args,
      '--plan',
      'pro',
      '--cost',
      '4',
      '--deadline',
      '9s',
    ]);
    expect(run.status).toBe(0);
    const metrics = await (await http(daemon, '/metrics')).text();
    expect(metrics).toMatch(/\{limit="api\[pro\]",verdict="deny"\} [1-9]/);
  });

  test('plan file: a reload gives a key its new plan, and a mistake changes nothing', async () => {
    const { daemon, write } = await startWith(CONFIG, { 'plans.csv': 'alice,free\n' });
    expect(await countAllowed(daemon, 'alice', 9)).toBe(2);
    write('plans.csv', 'alice,pro\nbob,gold\n');
    expect((await reload(daemon)).text).toContain('plans.csv:2: expected one of free, pro');
    expect(await countAllowed(daemon, 'alice', 9)).toBe(0);
    write('plans.csv', 'alice,pro\n');
    expect((await reload(daemon)).status).toBe(200);
    expect(await countAllowed(daemon, 'alice', 9)).toBe(4);
  });
});

describe('limits with always', () => {
  const CONFIG = `
unmatched: deny
limits:
  login: { bucket: { rate: 1/h, burst: 9 }, match: 'login:*' }
  total: { bucket: { rate: 1/h, burst: 4 }, per: limit, always: true }
`;

  test('a check that names another limit: counts in the ceiling, over HTTP and RESP', async () => {
    const { daemon } = await startWith(CONFIG);
    const status = async (key: string): Promise<number> =>
      (await http(daemon, `/check?limit=login&key=${key}`)).status;
    expect([await status('a'), await status('b')]).toEqual([200, 200]);
    expect(await respCheck(daemon, 'login', 'c')).toBe(':1');
    expect(await countAllowed(daemon, 'login:d', 1)).toBe(1);
    expect([await status('e'), await respCheck(daemon, 'login', 'f')]).toEqual([429, ':0']);
  });

  test('unmatched: deny: a key that only the ceiling matches is denied and takes nothing', async () => {
    const { daemon } = await startWith(CONFIG);
    expect(await countAllowed(daemon, 'stray', 9)).toBe(0);
    expect((await http(daemon, '/check?key=stray')).status).toBe(403);
    // Naming the ceiling does not admit the key either.
    const statuses = await Promise.all(
      ['limit=total&key=stray', 'check=total,stray', 'limit=total&key=stray&wait=1ms'].map(
        async (query) => (await http(daemon, `/check?${query}`)).status,
      ),
    );
    expect(statuses).toEqual([403, 403, 403]);
    const body = JSON.stringify([{ limit: 'total', key: 'stray' }]);
    const headers = { 'Content-Type': 'application/json' };
    const batch = await http(daemon, '/batch', { method: 'POST', body, headers });
    expect(await batch.json()).toMatchObject([{ verdict: 'deny', reason: 'unmatched' }]);
    const take = await http(daemon, '/take?limit=total&key=stray&max=9', { method: 'POST' });
    expect(await take.json()).toMatchObject({ taken: 0 });
    expect(await respCheck(daemon, 'total', 'stray')).toBe(':0');
    const all = await exchange(daemon.addresses.resp[0], 'SLUICE.CHECKALL total stray 1\r\n');
    expect(all.split('\r\n')[1]).toBe(':0');
    expect(await countAllowed(daemon, 'login:a', 9)).toBe(4);
  });
});

describe('IPv6 addresses', () => {
  interface Denials {
    readonly denied: readonly { readonly keys: readonly object[] }[];
    readonly denials: readonly { readonly denied: number }[];
    readonly lastHours: readonly object[];
  }

  /** One check of another address of the /64 by each way that a key comes in; how many were allowed. */
  async function checkEachWay(daemon: RunningDaemon): Promise<readonly boolean[]> {
    const byHttp = async (path: string, headers = {}): Promise<boolean> =>
      (await http(daemon, path, { headers })).status === 200;
    return [
      (await countAllowed(daemon, 'ip:2001:db8:1:2::1', 1)) === 1,
      (await respCheck(daemon, '*', 'ip:2001:db8:1:2:ffff::2')) === ':1',
      (await respCheck(daemon, 'api', 'ip:2001:DB8:1:2:0:0:0:3')) === ':1',
      await byHttp('/check?key=ip:2001:db8:1:2::4'),
      await byHttp('/check', { 'x-forwarded-for': '2001:db8:1:2::5' }),
    ];
  }
  const HTTP = "http: { prefix: 'ip:', trustProxy: 1 }\n";

  test('every protocol: addresses of a /64 share one count', async () => {
    const { daemon } = await startWith(
      `${HTTP}limits: { api: { bucket: { rate: 1/h, burst: 5 } } }`,
    );
    expect(await checkEachWay(daemon)).toEqual([true, true, true, true, true]);
    expect(await checkEachWay(daemon)).toEqual([false, false, false, false, false]);
    expect(await countAllowed(daemon, 'ip:2001:db8:1:3::1', 9)).toBe(5);
  });

  test('every protocol: denied addresses of a /64 are one key of /top and /denials', async () => {
    const { daemon } = await startWith(
      `${HTTP}deny: [ 'ip:2001:db8:bad::/48' ]
limits: { api: { bucket: { rate: 1/h, burst: 1 }, match: 'ip:*' } }`,
    );
    const json = async (path: string): Promise<Denials> =>
      (await (await http(daemon, path)).json()) as Denials;
    await countAllowed(daemon, 'ip:2001:db8:1:2::7', 1);
    expect(await checkEachWay(daemon)).toEqual([false, false, false, false, false]);
    await respCheck(daemon, '*', 'ip:2001:db8:bad::1');
    await http(daemon, '/check?key=ip:2001:db8:bad::2');
    const { denied } = await json('/top');
    expect(denied).toMatchObject([
      { limit: 'api', denied: 5, keys: [{ key: 'ip:2001:db8:1:2::/64', denied: 5 }] },
      { reason: 'deny-list', denied: 2, keys: [{ key: 'ip:2001:db8:bad:0::/64', denied: 2 }] },
    ]);
    expect(denied.map(({ keys }) => keys.length)).toEqual([1, 1]);
    for (const key of ['ip:2001:db8:1:2::9', 'ip:2001:db8:1:2::/64']) {
      const { denials, lastHours } = await json(`/denials?key=${key}`);
      const one = { key: 'ip:2001:db8:1:2::/64', limit: 'api' };
      for (const record of denials) expect(record).toMatchObject(one); // one for each ten seconds
      expect(denials.reduce((sum, { denied }) => sum + denied, 0)).toBe(5);
      expect(lastHours).toMatchObject([{ limit: 'api', denied: 5 }]);
    }
  });

  test('a configured header: the address in it counts as its network', async () => {
    const { daemon } = await startWith(
      'http: { key: { header: x-real-ip } }\nlimits: { api: { bucket: { rate: 1/h, burst: 2 } } }',
    );
    const status = async (address: string): Promise<number> =>
      (await http(daemon, '/check', { headers: { 'x-real-ip': address } })).status;
    const statuses = [await status('2001:db8::1'), await status('2001:db8::2')];
    expect([...statuses, await status('2001:db8::3')]).toEqual([200, 200, 429]);
  });

  test.skipIf(redisServer() === undefined)(
    'a limit in Redis: two daemons and all protocols share one count',
    async () => {
      const { port } = await serve(startRedis);
      const url = `redis://127.0.0.1:${port}`;
      const config = `${HTTP}limits: { api: { bucket: { rate: 1/h, burst: 7 }, redis: { url: '${url}', deadline: 10s } } }`;
      const [{ daemon: one }, { daemon: other }] = [
        await startWith(config),
        await startWith(config),
      ];
      expect(await checkEachWay(one)).toEqual([true, true, true, true, true]);
      expect(await checkEachWay(other)).toEqual([true, true, false, false, false]);
    },
  );
});
