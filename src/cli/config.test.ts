import { readdirSync, readFileSync } from 'node:fs';
import { afterAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { createTempDir } from '../../test/support/daemon.ts';
import { sluice } from '../../test/support/terminal.ts';
import { DEFAULT_ADDRESS } from '../daemon/config/read.ts';
import { LIMIT_KINDS } from '../limiter/limiter.ts';

const KEY = 'a secret of us all';

const place = createTempDir();
afterAll(() => place.remove());

describe('sluice config check', () => {
  test('accepts the example', () => {
    const { code, out } = sluice('config', 'check', 'sluice.example.yaml');
    expect(code).toBe(0);
    expect(out).toMatch(
      /^sluice.example.yaml is valid: 4 limits, 2 overrides\n {2}line {2}127.0.0.1:7610\n/,
    );
  });

  test('prints all mistakes, exit code 1', () => {
    const file = place.file(
      'bad.yaml',
      'limits:\n  a: { bucket: { rate: x } }\n  b: { buckt: 1 }\n',
    );
    const { code, err } = sluice('config', 'check', file);
    expect(code).toBe(1);
    expect(err).toMatch(/bad.yaml:2:\d+: expected `limits.a.bucket.rate`/);
    expect(err).toMatch(/bad.yaml:3:\d+: expected `limits.b.buckt`/);
  });

  test('prints mistakes in the order of the file', () => {
    const file = place.file(
      'mixed.yaml',
      'bogus: 1\nlimits: { a: { bukket: 1 } }\nlog: xml\npeers: { udp: 10.0.0.1:7613 }\n',
    );
    const { err } = sluice('config', 'check', file);
    expect(err.match(/mixed\.yaml:\d+/g)).toEqual([1, 2, 3, 4].map((n) => `mixed.yaml:${n}`));
  });

  test('refuses a file that cannot be read, exit code 2', () => {
    const { code, err } = sluice('config', 'check', 'nowhere.yaml');
    expect(code).toBe(2);
    expect(err).toMatch(/^sluice config check: cannot read nowhere.yaml: ENOENT/);
  });

  test('reads secrets from the environment, as the daemon does', () => {
    const file = place.file('fleet.yaml', 'peers: { udp: 239.0.0.1:7613 }');
    expect(sluice('config', 'check', file).err).toMatch(/fleet.yaml:1:\d+: expected `peers.key`/);
    vi.stubEnv('SLUICE_PEERS_KEY', KEY);
    onTestFinished(() => void vi.unstubAllEnvs());
    expect(sluice('config', 'check', file)).toMatchObject({ code: 0, err: '' });
    expect(sluice('explain', 'alice', '--config', file)).toMatchObject({ code: 0, err: '' });
  });

  test('reads the options and variables of serve, and refuses those that weaken the file', () => {
    const file = place.file('own.yaml', 'listen: { http: 127.0.0.1:1 }');
    vi.stubEnv('SLUICE_HTTP', '0.0.0.0:2');
    onTestFinished(() => void vi.unstubAllEnvs());
    const { code, err } = sluice('config', 'check', file);
    expect(code).toBe(1);
    expect(err).toMatch(
      /own.yaml:1:\d+: SLUICE_HTTP \(0.0.0.0:2\) would weaken `listen.http`, which is 127.0.0.1:1: change one of them, or allow it with --override/,
    );
    expect(sluice('config', 'check', file, '--http', '127.0.0.1:3').out).toMatch(
      /http {2}127.0.0.1:3$/,
    );
    expect(sluice('config', 'check', file, '--override').out).toMatch(/http {2}0.0.0.0:2$/);
    expect(sluice('config', 'check', file, '--override', '--rate', '9/x').err).toContain('--rate');
    expect(sluice('explain', 'alice', '--config', file)).toMatchObject({ code: 0 });
  });

  test('prints the address where groups lend', () => {
    const text = `groups: { self: a, groups: { a: {}, b: { at: "http://b" } }, key: ${KEY}, listen: 7614 }`;
    const { out } = sluice('config', 'check', place.file('groups.yaml', text));
    expect(out).toMatch(
      /\n {2}line {4}127\.0\.0\.1:7610\n(?:.*\n)* {2}groups {2}127\.0\.0\.1:7614$/,
    );
  });

  test('requires one file', () => {
    expect(sluice('config', 'check')).toMatchObject({
      code: 2,
      err: 'sluice config check: expected one file; see --help',
    });
  });

  /** The reader lists all options when it finds an unknown one. */
  test.each([
    ['STRAY: 1'],
    ['listen: { STRAY: 1 }'],
    ['listen: { line: { at: 1, STRAY: 1 } }'],
    ['listen: { line: { at: 1, tls: { cert: a, key: b, STRAY: 1 } } }'],
    ['admin: { STRAY: 1 }'],
    ['resp: { STRAY: 1 }'],
    ['http: { STRAY: 1 }'],
    ['bounds: { STRAY: 1 }'],
    ['keys: { STRAY: 1 }'],
    ['snapshot: { file: a, STRAY: 1 }'],
    ['peers: { STRAY: 1 }'],
    ['peers: { udp: { group: "239.0.0.1:1", STRAY: 1 } }'],
    ['peers: { udp: { peers: "127.0.0.1:1", STRAY: 1 } }'],
    ['peers: { nats: { servers: a, STRAY: 1 } }'],
    ['peers: { redis: { url: "redis://a", STRAY: 1 } }'],
    ['pool: { STRAY: 1 }'],
    ['pool: { redis: { url: "redis://a", STRAY: 1 } }'],
    ['pool: { nats: { servers: a, STRAY: 1 } }'],
    ['pool: { etcd: { endpoints: "http://a", STRAY: 1 } }'],
    ['pool: { etcd: { endpoints: "http://a", tls: { STRAY: 1 } } }'],
    ['pool: { environment: { size: A, STRAY: 1 } }'],
    ['pool: { dns: { host: a, STRAY: 1 } }'],
    [`groups: { self: a, groups: { a: {}, b: { at: "http://b" } }, key: ${KEY}, STRAY: 1 }`],
    ['groups: { self: a, groups: { a: { STRAY: 1 }, b: {} } }'],
    ['limits: { a: { bucket: { rate: 1 }, STRAY: 1 } }'],
    ['limits: { a: { bucket: { rate: 1 }, overrides: [{ match: b, bucket: 1, STRAY: 1 }] } }'],
  ])('every option beside STRAY in %s is documented, and in the example', (text) => {
    const file = place.file('stray.yaml', text);
    const [, names] =
      /STRAY` to be one of (.*), got/.exec(sluice('config', 'check', file).err) ?? [];
    const options = (names ?? '').split(', ').filter((name) => !LIMIT_KINDS.includes(name));
    expect(options.length).toBeGreaterThan(0);
    for (const page of ['docs/reference/configuration.md', 'sluice.example.yaml']) {
      const shown = readFileSync(page, 'utf8');
      const missing = options.filter((name) => !new RegExp(`\\b${name}\\b`).test(shown));
      expect({ page, missing }).toEqual({ page, missing: [] });
    }
  });
});

describe('docs pages', () => {
  const pages = readdirSync('docs').filter((name) => name.endsWith('.md'));

  test.each(pages)('%s names no port that the daemon does not use', (name) => {
    const named = readFileSync(`docs/${name}`, 'utf8').match(/\b76\d\d\b/g) ?? [];
    const known = Object.values(DEFAULT_ADDRESS).map((at) => at.split(':').at(-1));
    const examples = ['7613', '7614']; // used by examples of peers and groups
    expect(named.filter((port) => ![...known, ...examples].includes(port))).toEqual([]);
  });

  test('describe every command', () => {
    const page = readFileSync('docs/reference/command-line.md', 'utf8');
    const { out: help } = sluice('--help');
    const names = [...help.matchAll(/^ {2}(\w+) {2,}\S/gm)].map(([, name]) => name);
    expect(names).toContain('serve');
    for (const name of names) expect(page).toMatch(new RegExp(`^##+ ${name}(?: \\w+)?: `, 'm'));
  });
});

test('sluice explain: prints up to 20 mistakes of its configuration, and how many more there are', () => {
  const limits = Array.from({ length: 25 }, (_, n) => `  l${n}: { bucket: { rate: 0 } }`);
  const file = place.file('many.yaml', `limits:\n${limits.join('\n')}\n`);
  const { code, err } = sluice('explain', 'alice', '--config', file);
  expect(code).toBe(2);
  expect(err).toMatch(
    /^sluice explain: the configuration has mistakes\n.*many.yaml:2:\d+: expected/,
  );
  expect(err).toMatch(/\nand 5 more$/);
});

describe('sluice explain', () => {
  const explain = (key: string, ...more: string[]) =>
    sluice('explain', key, '--config', 'sluice.example.yaml', ...more);

  test('prints which limits apply, and why', () => {
    expect(explain('ip:10.1.2.3').out).toBe(`"ip:10.1.2.3": 2 limits decide, all or nothing
  ✓ per-client[bucket 100/s]: has an override for ip:10.1.2.3, is the most specific
      {"bucket":{"rate":"100/s"}}
  ✓ total: matches *, applies always; one count for all keys
      {"bucket":{"rate":"1000/s"}}
  ✓ trial: matches ip:*, applies always; shadow mode: counts, never refuses
      {"bucket":{"rate":"5/s"}}
  · default: matches *, but per-client is more specific`);
  });

  test('prints when an allow or deny list decides', () => {
    expect(explain('ip:203.0.113.9').out).toMatch(/always denied: the deny list has ip:203/);
    expect(explain('health:x').out).toMatch(/always allowed: the allow list has health:\*/);
    const excused = explain('ip:127.0.0.1').out;
    expect(excused).toMatch(/· per-client: its allow list has the key/);
    expect(excused).toMatch(/· default: matches \*, but per-client is more specific/);
  });

  test('prints what docs/reference/configuration.md shows', () => {
    const { out } = explain('ip:10.1.2.3');
    expect(readFileSync('docs/reference/configuration.md', 'utf8')).toContain(out);
  });

  test('--json prints JSON', () => {
    expect(JSON.parse(explain('bob', '--json').out)).toMatchObject({
      key: 'bob',
      summary: '2 limits decide, all or nothing',
      limits: [{ name: 'total', isApplied: true }, { name: 'default', isApplied: true }, {}, {}],
    });
  });

  test('explains the defaults without a configuration', () => {
    expect(sluice('explain', 'bob').out).toMatch(
      /^"bob": one limit decides\n {2}✓ default: matches \*/,
    );
  });

  test('prints the mistake of an invalid configuration, exit code 2', () => {
    const file = place.file('worse.yaml', 'limits: 7\n');
    expect(sluice('explain', 'bob', '--config', file)).toMatchObject({
      code: 2,
      err: expect.stringContaining('worse.yaml:1:1: expected `limits` to be limits by name, got 7'),
    });
  });
});
