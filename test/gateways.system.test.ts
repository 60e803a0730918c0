import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { daemonFixture, waitUntil } from './support/daemon.ts';
import {
  type Application,
  type ClientRequest,
  failsClosedLate,
  GATEWAYS,
  type GatewayDaemon,
  recipe,
  requestFrom,
  startApplication,
  startGatewayDaemon,
} from './support/gateways.ts';
import { sendRequest } from './support/http-protocol.ts';
import { nginxServer, type Service } from './support/services.ts';

const BURST = 2;
const SMALL_BURST = { 'rate: 10/s, burst: 20': `rate: 1/h, burst: ${BURST}` };

/** The time-out of the recipes is 250 ms; without it each gateway waits for 30 s and more. */
const MAX_OUTAGE_MS = 5000;

/** What a client sends to be counted less, as another client, or not at all. */
const ATTACKS: Readonly<Record<string, ClientRequest>> = {
  'cost in the query': { path: '/?cost=0' },
  'cost in the query, name encoded': { path: '/?%63ost=0' },
  'key in the query': { path: '/?key=ip:203.0.113.1' },
  'limit in the query': { path: '/?limit=vip' },
  'plan in the query': { path: '/?plan=vip' },
  'status in the query': { path: '/?status=299' },
  'hold in the query': { path: '/?hold=1' },
  'wait in the query': { path: '/?wait=10s' },
  'ampersand in the path': { path: '/%26cost=0' },
  'question mark in the path': { path: '/%3Fcost=0' },
  'semicolon in the path': { path: '/;cost=0' },
  'path of a check': { path: '/check?cost=0&key=ip:203.0.113.1' },
  'path of a check by Envoy': { path: '/check;cost=0/' },
  'path of the recipe': { path: '/_sluice?cost=0' },
  'path with dots': { path: '/a/..%2f..%2fcheck%3fcost=0' },
  'line break in the path': { path: '/%0D%0ASluice-Key:%20ip:203.0.113.1' },
  'absolute URL': { path: 'http://localhost/check?cost=0' },
  'key header': { headers: { 'Sluice-Key': 'ip:203.0.113.1' } },
  'key header twice': { headers: { 'Sluice-Key': ['ip:203.0.113.1', 'ip:203.0.113.2'] } },
  'key header, empty': { headers: { 'Sluice-Key': '' } },
  'key header with underscore': { headers: { Sluice_Key: 'ip:203.0.113.1' } },
  'key header as hop-by-hop': {
    headers: { Connection: 'close, Sluice-Key', 'Sluice-Key': 'ip:203.0.113.1' },
  },
  'headers of parameters': {
    headers: {
      ...{ 'Sluice-Cost': '0', 'Sluice-Limit': 'vip', 'Sluice-Plan': 'vip', 'Sluice-Hold': '1' },
      ...{ 'Sluice-Wait': '10s', 'Sluice-Status': '200', 'Sluice-Checked': 'yes' },
    },
  },
  'header of several checks': { headers: { 'Sluice-Check': 'limit=vip, key=a, cost=0' } },
  'X-Forwarded-For': { headers: { 'X-Forwarded-For': '203.0.113.1' } },
  'X-Real-IP and Forwarded': {
    headers: {
      'X-Real-IP': '203.0.113.1',
      Forwarded: 'for=203.0.113.1',
      'Client-IP': '203.0.113.1',
    },
  },
  'original URI': {
    headers: { 'X-Original-URI': '/check?cost=0', 'X-Forwarded-Uri': '/check?cost=0' },
  },
  'original method': {
    headers: { 'X-Forwarded-Method': 'POST', 'X-HTTP-Method-Override': 'OPTIONS' },
  },
  'Host of the daemon': { headers: { Host: '127.0.0.1:7612' } },
  'page of another site': {
    headers: {
      Origin: 'https://evil.example',
      'Sec-Fetch-Site': 'cross-site',
      Host: 'evil.example',
    },
  },
  'PROXY headers of the connection': { headers: { Via: '1.1 x', 'Proxy-Connection': 'close' } },
  'form in the body': {
    method: 'POST',
    headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
    body: 'cost=0&key=ip:203.0.113.1',
  },
  'JSON in the body': {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: '[{"key":"ip:203.0.113.1","cost":0}]',
  },
  'chunked body': {
    method: 'POST',
    headers: { 'Transfer-Encoding': 'chunked', 'Content-Type': 'application/json' },
    body: '{"key":"ip:203.0.113.1","cost":0}',
  },
  'request behind the body': {
    method: 'PUT',
    headers: { 'Content-Type': 'text/plain' },
    body: 'GET /check?cost=0 HTTP/1.1\r\nHost: a\r\n\r\n',
  },
  'method HEAD': { method: 'HEAD' },
  'method OPTIONS': { method: 'OPTIONS' },
  'method DELETE': { method: 'DELETE', path: '/?cost=0' },
  Expect: { method: 'POST', headers: { Expect: '100-continue' }, body: 'cost=0' },
  'bearer token and cookie': {
    headers: { Authorization: 'Bearer x', Cookie: 'cost=0; limit=vip' },
  },
  '12 KiB of headers': { headers: { 'X-Long': 'a'.repeat(6000), 'X-Longer': 'b'.repeat(6000) } },
};

for (const gateway of GATEWAYS) {
  describe.skipIf(gateway.command() === undefined)(`gateway ${gateway.name}`, () => {
    let app: Application;
    let daemon: GatewayDaemon;
    let patient: Service;
    let clients = 0;

    const started: Pick<Service, 'stop'>[] = [];

    /** The recipe with a change; it stops with the others. */
    const startGateway = async (
      edit: (text: string) => string,
      at = `127.0.0.1:${daemon.port}`,
    ): Promise<Service> => {
      const service = await gateway.start({ daemon: at, app: app.address }, edit);
      started.push(service);
      return service;
    };

    const patiently = failsClosedLate(gateway);

    beforeAll(async () => {
      app = await startApplication();
      daemon = await startGatewayDaemon(SMALL_BURST);
      patient = await startGateway(patiently);
    }, 60_000);

    afterAll(async () => {
      for (const service of started) await service.stop();
      await daemon?.stop();
      await app?.stop();
    });

    const newClient = (): string => `127.1.${Math.floor(clients / 200)}.${1 + (clients++ % 200)}`;

    /** What the daemon's operator sees. */
    const operator = async (path: string): Promise<string> =>
      (await sendRequest(daemon.port, path)).text;

    const metric = async (name: string): Promise<number> => {
      const [, value] = new RegExp(`^${name} (\\d+)$`, 'm').exec(await operator('/metrics')) ?? [];
      if (value === undefined) throw new Error(`/metrics has no ${name}`);
      return Number(value);
    };

    const remainingOf = async (key: string): Promise<number> => {
      const bytes = Buffer.from(key, 'latin1').toString('hex').replace(/../g, '%$&');
      const { limits } = JSON.parse(await operator(`/inspect?limit=per-client&key=${bytes}`));
      return limits[0].remaining;
    };

    const countOf = (limit: string): Promise<number> =>
      metric(`sluice_decisions_total\\{limit="${limit}",verdict="allow"\\}`);

    test('client within its burst: passes; then 429 with Retry-After and RateLimit', async () => {
      const client = newClient();
      for (let n = 0; n < BURST; n++) {
        const { status, text } = await requestFrom(client, patient.port, { path: `/page?n=${n}` });
        expect([status, text]).toEqual([200, `app GET /page?n=${n} `]);
      }
      const refused = await requestFrom(client, patient.port);
      expect(refused.status).toBe(429);
      expect(refused.text).not.toContain('app');
      expect(Number(refused.headers['retry-after'])).toBeGreaterThan(3000);
      expect(refused.headers.ratelimit).toMatch(/^"per-client";r=0;t=\d+$/);
      expect((await requestFrom(newClient(), patient.port)).status).toBe(200);
    });

    test('POST: is checked without its body, which reaches the application', async () => {
      const sent = { method: 'POST', path: '/form', body: 'cost=0' };
      const { text } = await requestFrom(newClient(), patient.port, sent);
      expect(text).toBe('app POST /form cost=0');
    });

    test('403 of the application: passes unchanged', async () => {
      const { status, text } = await requestFrom(newClient(), patient.port, { path: '/forbidden' });
      expect([status, text]).toEqual([403, 'app GET /forbidden ']);
    });

    test(`${Object.keys(ATTACKS).length} ways to inject parameters: each is counted as the client, cost 1`, async () => {
      for (const [name, attack] of Object.entries(ATTACKS)) {
        const client = newClient();
        const before = app.count();
        const statuses: number[] = [];
        for (let n = 0; n < BURST + 2; n++)
          statuses.push((await requestFrom(client, patient.port, attack)).status);
        const passed = app.count() - before;
        const spent = BURST - (await remainingOf(`ip:${client}`));
        const isRight = spent === passed && passed <= BURST && !statuses.includes(500);
        expect({ name, statuses, spent, passed, isRight }).toMatchObject({ isRight: true });
      }
      expect(await remainingOf('ip:203.0.113.1')).toBe(BURST);
    });

    /** A gateway whose key is a header of the client. */
    const HOSTILE_KEYS = ['a&cost=0', 'a&limit=total', 'a%26cost=0', 'a;cost=0', 'a?cost=0', 'a#b']
      .concat(['a/../b', 'a b', 'a, b', '"a"', '{a}', '$a', '%[src]', '{remote_host}', 'caf\xe9'])
      .concat(['a=b&status=299', '&hold=1', '+', '%', '%zz', 'x'.repeat(1024)]);

    test(`${HOSTILE_KEYS.length} keys that clients choose: each is a key, counted with cost 1`, async () => {
      const byKey = await startGateway((text) =>
        patiently(text).replace(gateway.clientAddress, `ip:${gateway.apiKey}`),
      );
      for (const key of HOSTILE_KEYS) {
        const sent = { headers: { 'X-Api-Key': key } };
        const { status } = await requestFrom(newClient(), byKey.port, sent);
        const remaining = await remainingOf(`ip:${key}`);
        expect([key, status, remaining]).toEqual([key, 200, BURST - 1]);
      }
      const long = { headers: { 'X-Api-Key': 'x'.repeat(5000) } };
      expect([400, 429]).toContain((await requestFrom(newClient(), byKey.port, long)).status);
    });

    test('16 KiB of headers, or no header of the key: no error 500', async () => {
      const large = { 'X-A': 'a'.repeat(7000), 'X-B': 'b'.repeat(7000), 'X-C': 'c'.repeat(7000) };
      const { status } = await requestFrom(newClient(), patient.port, { headers: large });
      expect([200, 400, 431]).toContain(status);
      const byKey = await startGateway((text) =>
        patiently(text).replace(gateway.clientAddress, gateway.apiKey),
      );
      const answer = await requestFrom(newClient(), byKey.port);
      expect([400, 429]).toContain(answer.status);
      expect(answer.text).not.toContain('app');
    });

    test('Unix socket of the daemon: takes the place of its address', async () => {
      const bySocket = await startGateway(patiently, gateway.unixPrefix + daemon.socket);
      const client = newClient();
      const statuses: number[] = [];
      for (let n = 0; n <= BURST; n++)
        statuses.push((await requestFrom(client, bySocket.port)).status);
      expect(statuses).toEqual([...Array(BURST).fill(200), 429]);
    });

    test('limit with always: counts the requests of all clients', async () => {
      expect(await countOf('total')).toBeGreaterThan(Object.keys(ATTACKS).length);
      expect(await countOf('total')).toBe(await countOf('per-client'));
    });

    /** Both gateways, as they stand, answer in time and as configured, several times. */
    const outage = async (n: 0 | 1, end: () => unknown): Promise<void> => {
      const open = await startGateway(gateway.failOpen);
      const closed = await startGateway(gateway.failClosed);
      for (const { port } of [open, closed]) await isChecking(port);
      if (n === 0) await daemon.kill();
      else daemon.pause();
      for (let tries = 0; tries < 3; tries++) {
        const passed = await requestFrom(newClient(), open.port, { path: '/open' });
        expect([passed.status, passed.text]).toEqual([200, 'app GET /open ']);
        expect(passed.ms).toBeLessThan(MAX_OUTAGE_MS);
        const refused = await requestFrom(newClient(), closed.port);
        expect([refused.status, refused.text.includes('app')]).toEqual([
          gateway.closedStatus[n],
          false,
        ]);
        expect(refused.ms).toBeLessThan(MAX_OUTAGE_MS);
      }
      await end();
      for (const { port } of [open, closed]) await isChecking(port);
    };

    /** The gateway refuses what the daemon refuses: at once, or soon after an outage. */
    const isChecking = (port: number): Promise<void> =>
      waitUntil(async () => {
        const client = newClient();
        const statuses: number[] = [];
        for (let n = 0; n <= BURST; n++) statuses.push((await requestFrom(client, port)).status);
        return statuses.join() === [...Array(BURST).fill(200), 429].join();
      });

    test('daemon frozen: fails open or closed as configured, in time, and recovers', () =>
      outage(1, () => daemon.resume()));

    test('daemon dead: fails open or closed as configured, in time, and recovers', () =>
      outage(0, () => daemon.restart()));
  });
}

/** Id of the user and the group that have no privileges, as the workers of a gateway. */
const UNPRIVILEGED = 65534;

describe.skipIf(process.getuid?.() !== 0)('Unix socket', () => {
  const { start, place, end } = daemonFixture();
  afterEach(end);

  test('recipe: a gateway of the same group can connect; without `mode` it cannot', async () => {
    const dir = place();
    chownSync(dir.path, 0, UNPRIVILEGED);
    chmodSync(dir.path, 0o2750); // new files get the group of the folder
    const socket = join(dir.path, 'http.sock');
    const status = async (listen: string): Promise<string> => {
      const off = ['--line', 'off', '--resp', 'off'];
      const daemon = await start([...off, '--config', dir.file('sluice.yaml', listen)]);
      const args = ['-s', '--unix-socket', socket, 'http://localhost/check?key=a'];
      const asWorker = { uid: UNPRIVILEGED, gid: UNPRIVILEGED, encoding: 'utf8' } as const;
      const { stdout } = spawnSync(
        'curl',
        ['-w', '%{http_code}', '-o', '/dev/null', ...args],
        asWorker,
      );
      await daemon.stop();
      return stdout;
    };
    const path = '/run/sluice/http.sock';
    const listen = recipe('sluice.yaml for a Unix socket', { [path]: socket });
    expect(await status(listen)).toBe('200');
    expect(await status(`listen: { http: ${socket} }`)).toBe('000');
  });
});

test('time-outs of all recipes: above twice the default deadline of a limit in Redis', () => {
  const pages = ['how-to/gateways', 'tutorials/daemon-with-nginx', 'reference/http-check'];
  const texts = pages.map((page) => readFileSync(`docs/${page}.md`, 'utf8'));
  const spelled = /_timeout (\d+)ms|lua\.sluice \S+ (\d+)$|timeout: (0\.\d+)s/gm;
  const timeouts = texts.map((text) =>
    [...text.matchAll(spelled)].map(([, ms, lua, s]) => Number(ms ?? lua ?? Number(s) * 1000)),
  );
  expect(timeouts.map(({ length }) => length)).toEqual([6, 2, 2]);
  const [, deadline] =
    /^\| `deadline` \|.*\| (\d+) ms \|/m.exec(readFileSync('docs/reference/redis.md', 'utf8')) ??
    [];
  expect(Math.min(...timeouts.flat())).toBeGreaterThan(2 * Number(deadline));
});

describe.skipIf(nginxServer() === undefined)('gateway nginx, key by address', () => {
  test('recipe and the YAML beside it: of 40 requests of one client most are refused', async () => {
    const app = await startApplication();
    const daemon = await startGatewayDaemon({}, 'sluice.yaml for nginx');
    const [nginx] = GATEWAYS;
    const addresses = { daemon: `127.0.0.1:${daemon.port}`, app: app.address };
    const gateway = await nginx.start(addresses, failsClosedLate(nginx)); // time for a busy machine
    try {
      const send = (client: string) => requestFrom(client, gateway.port);
      const replies = await Promise.all(Array.from({ length: 40 }, () => send('127.2.0.1')));
      const refused = replies.filter(({ status }) => status === 429);
      expect(refused.length).toBeGreaterThan(20);
      expect(app.count()).toBe(replies.length - refused.length);
      expect((await send('127.2.0.2')).status).toBe(200);
    } finally {
      for (const service of [gateway, daemon, app]) await service.stop();
    }
  }, 60_000);
});

describe.skipIf(nginxServer() === undefined)('gateway nginx, several limits in one check', () => {
  test('one of two limits refuses: 429, and the other is not charged; so does a name with a control character', async () => {
    const limits = recipe('limits of a login', {
      '# limits of a login\n': '',
      '5/m': '2/h',
      '20/m': '3/h',
    });
    const login = recipe('check of a login', { '# check of a login\n': '' });
    const user = recipe('user of a login', {});
    const app = await startApplication();
    const daemon = await startGatewayDaemon({ 'limits:\n': limits });
    const [nginx] = GATEWAYS;
    const addresses = { daemon: `127.0.0.1:${daemon.port}`, app: app.address };
    const gateway = await nginx.start(addresses, (text) =>
      failsClosedLate(nginx)(text)
        .replace(/^server /m, () => `${user}\nserver `)
        .replace(/ *proxy_pass http:\/\/sluice.*\n/, () => login)
        .replace(/.*Sluice-Key.*\n/, ''),
    );
    try {
      const statusOf = async (user: string, client = '127.2.0.1'): Promise<number> => {
        const authorization = `Basic ${Buffer.from(`${user}:secret`).toString('base64')}`;
        return (await requestFrom(client, gateway.port, { headers: { authorization } })).status;
      };
      const requests = app.count();
      for (const user of [
        'a\r\nSluice-Address',
        'a\nb',
        'a\rb',
        'a\0b',
        'a\r\n\r\nPOST /unban',
        '\n',
      ])
        expect([user, await statusOf(user)]).toEqual([user, 429]);
      expect(app.count()).toBe(requests);
      const statuses: number[] = [];
      for (const user of ['eve', 'eve', 'eve', 'eve', 'bob', 'bob'])
        statuses.push(await statusOf(user));
      expect(statuses).toEqual([200, 200, 429, 429, 200, 429]);
      expect([await statusOf('bob', '127.2.0.2'), await statusOf('bob', '127.2.0.2')]).toEqual([
        200, 429,
      ]);
    } finally {
      await Promise.all([gateway.stop(), daemon.stop(), app.stop()]);
    }
  });
});

/** What gateways send that Debian does not have, to a daemon with the configuration of the page. */
describe('gateways that are not installed', () => {
  const running: Service[] = [];
  afterEach(async () => {
    for (const service of running.splice(0)) await service.stop();
  });

  const start = async (name?: string): Promise<Service> => {
    const daemon = await startGatewayDaemon(SMALL_BURST, name);
    running.push(daemon);
    return daemon;
  };

  /** The statuses of one request more than the burst. */
  const statusesOf = async (send: () => Promise<{ status: number }>): Promise<number[]> => {
    const statuses: number[] = [];
    for (let n = 0; n <= BURST; n++) statuses.push((await send()).status);
    return statuses;
  };

  const LIMITED = [...Array(BURST).fill(200), 429];

  test('IPv6 addresses in Sluice-Key: count by their /64 network', async () => {
    const daemon = await start();
    const send = (address: string) =>
      sendRequest(daemon.port, '/check', { headers: { 'Sluice-Key': `ip:${address}` } });
    const statuses: number[] = [];
    for (const address of [
      '2001:db8:1:2::1',
      '2001:db8:1:2:3::1',
      '2001:DB8:1:2::5',
      '2001:db8:1:3::1',
    ])
      statuses.push((await send(address)).status);
    expect(statuses).toEqual([200, 200, 429, 200]);
  });

  test('Envoy: the path_prefix and the header of the recipe are a check, whatever the client sends', async () => {
    const daemon = await start();
    const [filter] = parse(recipe('envoy.yaml', {})).http_filters;
    const { path_prefix: prefix, authorization_request: request } =
      filter.typed_config.http_service;
    const [{ key, value }] = request.headers_to_add;
    let clients = 0;
    for (const [name, attack] of Object.entries(ATTACKS)) {
      const { path = '/', method = 'GET' } = attack;
      if (!path.startsWith('/')) continue; // Envoy makes it a path
      const client = value.replace(/%\w+%/, `192.0.2.${++clients}`);
      const headers = { Host: 'shop.example.org', [key]: client, 'Content-Length': '0' };
      const sent = { method, headers: { ...headers, 'x-envoy-internal': 'true' } };
      const statuses = await statusesOf(() => sendRequest(daemon.port, prefix + path, sent));
      expect([name, statuses]).toEqual([name, LIMITED]);
    }
  });

  test('Traefik: X-Forwarded-For is the key, whatever else the client sends', async () => {
    const daemon = await start('sluice.yaml for Traefik');
    const page = parse(recipe('dynamic configuration of Traefik', {}));
    const { pathname, search } = new URL(page.http.middlewares.limited.forwardAuth.address);
    let clients = 0;
    for (const [name, attack] of Object.entries(ATTACKS)) {
      const headers = {
        ...attack.headers, // without authRequestHeaders
        'X-Forwarded-For': `192.0.2.${++clients}`,
        'X-Forwarded-Method': attack.method ?? 'GET',
        'X-Forwarded-Uri': attack.path ?? '/',
        'X-Forwarded-Host': 'shop.example.org',
        'X-Forwarded-Proto': 'http',
      };
      const lone = { ...headers, 'Transfer-Encoding': undefined, Expect: undefined };
      const sent = { headers: JSON.parse(JSON.stringify(lone)) };
      const statuses = await statusesOf(() => sendRequest(daemon.port, pathname + search, sent));
      expect([name, statuses]).toEqual([name, LIMITED]);
    }
  });
});
