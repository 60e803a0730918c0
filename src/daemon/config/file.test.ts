import { describe, expect, test } from 'vitest';
import { fromEnvironment, loadConfig, parseConfigText } from './file.ts';

const problemsOf = (text: string): readonly string[] => {
  const loaded = parseConfigText('sluice.yaml', text);
  return 'problems' in loaded ? loaded.problems : [];
};

const configOf = (text: string, env: NodeJS.ProcessEnv = {}) => {
  const loaded = parseConfigText('sluice.yaml', text, fromEnvironment(env));
  if ('config' in loaded) return loaded.config;
  throw new Error(loaded.problems.join('\n'));
};

const TWO = 'groups: { eu: {}, us: { at: "http://us:7614" } }';
const KEYED = 'key: a secret of all regions';
const GROUPS = `groups: { self: eu, ${TWO}, ${KEYED} }\n`;

describe('precedence', () => {
  const refusalOf = (text: string, env: NodeJS.ProcessEnv): string | undefined => {
    const loaded = parseConfigText('sluice.yaml', text, fromEnvironment(env));
    return 'problems' in loaded ? loaded.problems.join('\n') : undefined;
  };
  const TLS = 'tls: { cert: a, key: b }';
  const HTTP = (value: string): string => `listen: { line: off, http: ${value} }`;

  test.each([
    ['TLS', HTTP(`{ at: 0.0.0.0:1, ${TLS} }`), '127.0.0.1:1', '0.0.0.0:1 with TLS:'],
    [
      'TLS of the only open one',
      HTTP(`['127.0.0.1:1', { at: 0.0.0.0:2, ${TLS} }]`),
      '0.0.0.0:2',
      '127.0.0.1:1, 0.0.0.0:2 with TLS:',
    ],
    ['TLS with a mistake', HTTP('{ at: 0.0.0.0:1, tls: { cert: a } }'), '0.0.0.0:1', 'a mistake:'],
    [
      'the mode of a socket',
      HTTP("{ at: /run/a.sock, mode: '600' }"),
      '/run/a.sock',
      'with a mode:',
    ],
    ['loopback', HTTP('127.0.0.1:1'), '127.0.0.1:1,0.0.0.0:1', 'which is 127.0.0.1:1:'],
    ['one interface', HTTP('10.0.0.1:1'), '[::]:1', 'which is 10.0.0.1:1:'],
    ['the choice of an interface', HTTP('10.0.0.1:1'), '192.0.2.1:1', 'which is 10.0.0.1:1:'],
    ['a Unix socket', HTTP('/run/a.sock'), '127.0.0.1:1', 'which is /run/a.sock:'],
    ['the default, loopback', 'listen: { line: off }', '0.0.0.0:1', 'which is 127.0.0.1:7612:'],
    ['off', 'listen: { http: off }', '127.0.0.1:1', 'which is off:'],
  ])('a variable that weakens %s is an error with both places', (_, text, value, why) => {
    const refusal = refusalOf(text, { SLUICE_HTTP: value });
    expect(refusal).toMatch(/^sluice.yaml:1:\d+: SLUICE_HTTP \(\S+\) .*`listen.http`.*--override/);
    expect(refusal).toContain(why);
    const forced = fromEnvironment({ SLUICE_HTTP: value }).map((each) => ({
      ...each,
      isForced: true,
    }));
    expect(parseConfigText('sluice.yaml', text, forced)).toHaveProperty('config');
  });

  test.each([
    ['no listeners in the file', 'limits: {}', '0.0.0.0:1'],
    ['another port', HTTP('127.0.0.1:1'), '127.0.0.1:2'],
    ['another port of an interface', HTTP('10.0.0.1:1'), '10.0.0.1:2'],
    ['fewer hosts', HTTP('0.0.0.0:1'), '10.0.0.1:1,/run/a.sock'],
    ['none', HTTP(`{ at: 0.0.0.0:1, ${TLS} }`), 'off'],
  ])('a variable may set a listener: %s', (_, text, value) => {
    expect(refusalOf(text, { SLUICE_HTTP: value })).toBeUndefined();
  });

  test('a variable may not allow keys that no limit matches where the file denies them', () => {
    expect(refusalOf('unmatched: deny', { SLUICE_UNMATCHED: 'allow' })).toMatch(
      /^sluice.yaml:1:\d+: SLUICE_UNMATCHED \(allow\) .*--override/,
    );
    expect(refusalOf('unmatched: allow', { SLUICE_UNMATCHED: 'deny' })).toBeUndefined();
  });

  test('a variable may not remove the peers of the file: each daemon would grant a whole limit', () => {
    expect(refusalOf('peers: { udp: "127.0.0.1:1" }', { SLUICE_PEERS: 'off' })).toMatch(
      /^sluice.yaml:1:\d+: SLUICE_PEERS \(off\) would weaken `peers`, .*--override/,
    );
    expect(refusalOf('', { SLUICE_PEERS: 'off' })).toBeUndefined();
  });
});

describe('configuration', () => {
  test('may be empty: every option has a default, and only loopback listens', () => {
    const { listen, limits, snapshot, unmatched, admin } = configOf('');
    expect(listen).toEqual({
      line: [{ kind: 'tcp', host: '127.0.0.1', port: 7610 }],
      resp: [{ kind: 'tcp', host: '127.0.0.1', port: 7611 }],
      http: [{ kind: 'tcp', host: '127.0.0.1', port: 7612 }],
    });
    expect(limits.map(({ name, rule }) => ({ name, ...rule }))).toEqual([
      { name: 'default', limit: { bucket: { rate: '1/s', burst: 10 } } },
    ]);
    expect({ snapshot, unmatched, admin }).toEqual({
      snapshot: undefined,
      unmatched: 'allow',
      admin: { token: undefined },
    });
  });

  test('an error has line, column, field, expected and actual value, and marks the position', () => {
    expect(problemsOf('limits:\n  api:\n    bucket: { rate: 10/x }\n')).toEqual([
      [
        'sluice.yaml:3:15: expected `limits.api.bucket.rate` to be a rate above 0, such as "100/s", "1/6s" or "500/min", got "10/x"',
        '    3 |     bucket: { rate: 10/x }',
        '      |               ^',
      ].join('\n'),
    ]);
  });

  test('reports a YAML error once, however many brackets are open', () => {
    expect(problemsOf('limits: {{{\n')).toEqual([
      expect.stringMatching(/^sluice.yaml:2:1: .* }\n/),
    ]);
  });

  test('reports all mistakes at once', () => {
    const problems = problemsOf(`
listen: { line: nowhere }
bounds: { connections: 0 }
limits:
  a: { bucket: {} }
  b: { bucket: { rate: 1/s }, per: host }
  c: { bukcet: { rate: 1/s } }
colour: red
`);
    expect(
      problems.map((problem) => /^sluice.yaml:(\d+):.*?`(.*?)`/.exec(problem)?.slice(1)),
    ).toEqual([
      ['2', 'listen.line'],
      ['3', 'bounds.connections'],
      ['5', 'limits.a.bucket.rate'],
      ['6', 'limits.b.per'],
      ['7', 'limits.c.bukcet'],
      ['8', 'colour'],
    ]);
  });

  const placesOf = (text: string) =>
    problemsOf(text).map((problem) =>
      /^sluice.yaml:(\d+):.*?`(.*?)`/.exec(problem)?.slice(1).join(' '),
    );

  test('overrides of different kinds with the same text are different', () => {
    const patterns = [
      '"x*"',
      '{ exact: "x*" }',
      '{ prefix: "x*" }',
      '"x**"',
      '{ regex: x }',
      '/x/',
    ];
    const overrides = patterns.map((match) => `{ match: ${match}, bucket: { rate: 1 } }`);
    const loaded = parseConfigText(
      'sluice.yaml',
      `limits: { a: { bucket: { rate: 1 }, overrides: [${overrides}] } }`,
    );
    if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
    const { patterns: table } = loaded.config.limits[0].overrides;
    const texts = patterns.map((_, n) => table.textAt(n));
    expect(new Set(texts).size).toBe(patterns.length);
  });

  test('a duration of seconds without a unit is an error, in rules and overrides', () => {
    const text = `
limits:
  api:
    window: { limit: 5, per: 60 }
    permitTimeout: 30
    overrides: [{ match: 'b*', window: { limit: 9, per: 60 } }]
`;
    expect(problemsOf(text).join('\n')).toContain(
      'expected `limits.api.window.per` to be a duration with a unit, got 60; a bare number is milliseconds: write "60s" or "60ms"',
    );
    expect(placesOf(text)).toEqual([
      '4 limits.api.window.per',
      '5 limits.api.permitTimeout',
      '6 limits.api.overrides[0].window.per',
    ]);
  });

  test('reports every mistake of a limit, in the order of the file', () => {
    const text = `
limits:
  api:
    bucket: { rate: 10/x, burst: -1, brust: 2 }
    match: ['a*', 7, { regex: '(' }]
    per: host
    shadow: maybe
    overrides:
      - { bucket: { rate: 0, maxDebt: x } }
      - { match: 'b*', ramp: { min: 1, max: 0, over: 1y, mode: wild } }
    redis: { url: nowhere, deadline: 0, prefech: 1 }
    pool: true
  both: { all: [{ spacing: { every: x, reserve: 0.5 } }, { window: { limit: 0, per: 1, steps: 0 } }] }
  flights: { adaptive: { fixed: 0, initial: 0, max: 3, alpha: 2, partitions: { a: 2, b: 0 } } }
`;
    expect(placesOf(text).slice(0, -1)).toEqual([
      '4 limits.api.bucket.rate',
      '4 limits.api.bucket.burst',
      '4 limits.api.bucket.brust',
      '5 limits.api.match[1]',
      '5 limits.api.match[2].regex',
      '6 limits.api.per',
      '7 limits.api.shadow',
      '9 limits.api.overrides[0].match',
      '9 limits.api.overrides[0].bucket.rate',
      '9 limits.api.overrides[0].bucket.maxDebt',
      '10 limits.api.overrides[1].ramp.max',
      '10 limits.api.overrides[1].ramp.over',
      '10 limits.api.overrides[1].ramp.mode',
      '11 limits.api.redis.url',
      '11 limits.api.redis.deadline',
      '11 limits.api.redis.prefech',
      '12 limits.api.pool',
      '13 limits.both.all[0].spacing.every',
      '13 limits.both.all[0].spacing.reserve',
      '13 limits.both.all[1].window.limit',
    ]);
    expect(problemsOf(text).at(-1)).toBe('and 4 more');
  });

  test('reports every mistake of a section, and shows no line that may hold a secret', () => {
    const text = `
listen: { line: nowhere, resp: [1, x], http: { at: y, mode: 9, tls: {} } }
bounds: { connections: 0, key: x, slow: soon }
snapshot: { every: 0, maxAge: x }
http: { key: { header: '' }, prefix: 7, trustProxy: x }
peers: { udp: nowhere, interval: 0, exchange: never, key: short }
pool: { redis: { url: http, deadline: 0 }, sync: 1s, onUnavailable: panic }
groups: { self: eu, groups: { a: { weight: -1, min: 2 }, b: { at: ftp } }, reserve: 2 }
`;
    expect(problemsOf(text).length).toBe(21); // 20 problems and the number of the others
    const each = text.split('\n').filter((line) => line !== '');
    const fields = each.flatMap((line) => placesOf(line).map((place) => place?.slice(2)));
    expect(fields).toEqual([
      'listen.line',
      'listen.resp[1]',
      'listen.http.at',
      'listen.http.mode',
      'listen.http.tls.cert',
      'listen.http.tls.key',
      'bounds.connections',
      'bounds.key',
      'bounds.slow',
      'snapshot.file',
      'snapshot.every',
      'snapshot.maxAge',
      'http.key.header',
      'http.prefix',
      'http.trustProxy',
      'peers.udp.peers',
      'peers.interval',
      'peers.exchange',
      'peers.key',
      'pool.redis.url',
      'pool.redis.deadline',
      'pool.sync',
      'pool.onUnavailable',
      'groups.key', // left out: reported where the section begins
      'groups.groups.a.weight',
      'groups.groups.a.min',
      'groups.groups.b.at',
      'groups.reserve',
    ]);
    expect(problemsOf('peers: { udp: nowhere, key: short }').join()).not.toContain('short');
  });

  test.each([
    ['listen: { line: 70000 }', '`listen.line` to be an address'],
    ['listen: { line: [a:b:c] }', '`listen.line[0]` to be an address'],
    ['listen: { http: { at: 1, tls: {} } }', '`listen.http.tls.cert` to be a file'],
    [
      'listen: { http: { at: /x, tls: { cert: a, key: b } } }',
      '`listen.http.tls` to be left out on a Unix',
    ],
    ['listen: { line: { at: 7, mode: 660 } }', '`listen.line.mode` to be left out: only a Unix'],
    ['admin: { token: short }', '`admin.token` to be at least 16'],
    ['limits: []', '`limits` to be limits by name'],
    ['http: { trustproxy: true }', 'did you mean `trustProxy`?'],
    ['limits: { a: { bukcet: { rate: 1 } } }', 'did you mean `bucket`?'],
    ['limits: { a: { rate: 1/s } }', 'did you mean `bucket: { rate: … }`?'],
    ['limits: { a: { burst: 5, rate: 1/s } }', 'did you mean `bucket: { burst: … }`?'],
    ['limits: { a: { every: 6s } }', 'did you mean `spacing: { every: … }`?'],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: b, rate: 5 }] } }',
      'did you mean `bucket: { rate: … }`?',
    ],
    ['limits: { a: { token-bucket: { rate: 1 } } }', 'did you mean `bucket`?'],
    [
      'keys: { ipv6: 31 }',
      '`keys.ipv6` to be a whole number of at least 32 and at most 128, got 31',
    ],
    ['bounds: { conections: 1 }', 'did you mean `connections`?'],
    ['limit: {}', 'did you mean `limits`?'],
    ['peers: { upd: "127.0.0.1:1" }', 'did you mean `udp`?'],
    ['groups: { slef: eu }', 'did you mean `self`?'],
    ['limits: { a: { bucket: { rate: 1 }, redis: { deadlin: 1s } } }', 'did you mean `deadline`?'],
    ['pool: { size: 3, memberTimout: 1s }', 'did you mean `memberTimeout`?'],
    ["limits: { 'a b': { bucket: { rate: 1 } } }", '`limits["a b"]` to be a name of'],
    ['limits: { a: { bucket: { rate: 1 }, spacing: { every: 1 } } }', 'got bucket and spacing'],
    ['limits: { a: {} }', '`limits.a` to be a limit with one of bucket'],
    ['limits: { a: { bucket: { rate: 1 }, per: limit, overrides: [] }, b: 1 }', '`limits.b`'],
    [
      'limits: { a: { bucket: { rate: 1 }, match: [] } }',
      '`limits.a.match` to be at least one pattern, got []',
    ],
    ['limits: { a: { bucket: { rate: 1 }, match: { regex: "(" } } }', '`limits.a.match.regex`'],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ bucket: { rate: 1 } }] } }',
      'overrides[0].match',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: "x*", bucket: { rate: 1 } }, { match: { prefix: x }, bucket: { rate: 2 } }] } }',
      '`limits.a.overrides[1].match` to be unlike that of the other overrides',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: [], bucket: { rate: 1 } }] } }',
      '`limits.a.overrides[0].match` to be a pattern or a list of patterns, got []',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: b, name: x, bucket: { rate: 1 } }, { match: c, name: x, bucket: { rate: 2 } }] } }',
      '`limits.a.overrides[1].name` to be a name that no other rule has, got "x"',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: b, name: "x y", bucket: { rate: 1 } }] } }',
      '`limits.a.overrides[0].name` to be a name of at most 64 letters',
    ],
    ['limits: { a: { bucket: { rate: 1 }, maxKeys: 0 } }', '`limits.a.maxKeys`'],
    ['limits: { a: { bucket: { rate: 1 }, redis: { url: x } } }', '`limits.a.redis.url`'],
    [
      'limits: { a: { adaptive: {}, redis: { url: "redis://x" } } }',
      'expected `limits.a` to be made of bucket, spacing, ramp, window, quota, concurrency or lockout when it is shared through Redis',
    ],
    [
      'limits: { a: { lockout: { after: 3 }, redis: { url: "redis://x", fairQueue: true } } }',
      'expected `limits.a.redis.fairQueue` to be false with a lockout',
    ],
    [
      'limits: { a: { lockout: { after: 3, on: refusal } } }',
      'expected `limits.a.lockout.on` to be failure, or the lock-out in an `all`',
    ],
    [
      'limits: { a: { all: [{ concurrency: 3 }, { bucket: { rate: 1 } }], etcd: "http://127.0.0.1:1" } }',
      'expected `limits.a` to be alone when it counts calls in flight through etcd: combine limiters with all([...]) instead',
    ],
    [
      'peers: { udp: "127.0.0.1:1" }\nlimits: { a: { quota: { limit: 3, per: day }, peers: true } }',
      '`limits.a.peers` to be left out: peers can share bucket, window and lockout, and no other rule',
    ],
    [
      `${GROUPS}limits: { a: { lockout: { after: 1 }, groups: true } }`,
      'expected `limits.a.lockout.after` to be at least 2, so that group eu has one token of it, got 1',
    ],
    [
      'pool: { size: 3 }\nlimits: { a: { all: [{ bucket: { rate: 1 } }, { lockout: { after: 3, on: refusal } }], pool: true } }',
      '`limits.a.pool` to be left out: a pool can divide bucket, spacing, ramp',
    ],
    [
      'limits: { a: { spacing: { every: 1s }, redis: { url: "redis://x", prefetch: 5 } } }',
      'expected `limits.a.redis.prefetch` to be left out unless the limit is made of buckets',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, redis: { url: "redis://x", prefetch: 5 }, overrides: [{ match: b, spacing: { every: 1s } }] } }',
      'expected `limits.a.redis.prefetch` to be left out unless the limit is made of buckets',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, redis: { url: "redis://x", fairQueue: 1 } } }',
      'expected `limits.a.redis.fairQueue` to be true or false, got 1',
    ],
    ['limits: { a: { bucket: { rate: 1 }, etcd: x } }', '`limits.a.etcd.endpoints[0]`'],
    ['limits: { a: { ramp: {}, etcd: "http://x" } }', '`limits.a'],
    [
      'limits: { a: { adaptive: {}, etcd: "http://x" } }',
      'expected `limits.a` to be made of bucket, spacing, window, quota, ramp, lockout, concurrency when it is shared through etcd (a rule that learns',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, etcd: { endpoints: "http://x", startTolerence: 1s } } }',
      '`limits.a.etcd.startTolerence`',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, etcd: "http://x", redis: { url: "redis://x" } } }',
      '`limits.a.etcd` to be left out beside redis',
    ],
    ['peers: {}', '`peers` to be an object with one of udp, nats, redis, got none'],
    ['peers: 239.0.0.1:7613', '`peers` to be an object with one of udp, nats, redis'],
    ['peers: { udp: x:1, nats: y }', 'got udp and nats'],
    ['admin: { token: short }', 'got another value'],
    ['listen: { line: off, resp: off, http: off }', 'got off for all of them'],
    ['limits: { a: {} }', 'got none'],
    ['limits: { a: { bucket: { rate: 1 }, window: {} } }', 'got bucket and window'],
    ['peers: { udp: nowhere }', '`peers.udp.peers` to be a host and a port'],
    ['peers: { udp: { group: "10.0.0.1:1" } }', '`peers.udp.group` to be a multicast address'],
    [
      'peers: { udp: "10.0.0.1:1", key: short }',
      '`peers.key` to be a string of at least 16 characters',
    ],
    ['peers: { udp: "10.0.0.1:1", flushTreshold: 1 }', '`peers.flushTreshold`'],
    ['peers: { redis: "http://x" }', '`peers.redis.url` to be an address such as redis://'],
    ['peers: { nats: [] }', '`peers.nats.servers` to be addresses'],
    ['peers: { nats: "nats://x" }', '`peers.key` to be a secret that all of the fleet know'],
    [
      'peers: { udp: 239.0.0.1:1 }',
      '`peers.key` to be a secret that all of the fleet know (or SLUICE',
    ],
    ['peers: { udp: ["127.0.0.1:1", "10.0.0.1:1"] }', '`peers.key` to be a secret'],
    ['peers: { udp: ["239.0.0.1:1", "239.0.0.2:1"] }', '`peers.udp.peers` to be unicast addresses'],
    ['peers: { nats: { servers: x, subject: "a.*" } }', '`peers.nats.subject` to be a subject'],
    ['limits: { a: { bucket: { rate: 1 }, peers: true } }', '`limits.a.peers` to be left out, or'],
    [
      'limits: { a: { bucket: { rate: 1 }, peers: maybe } }',
      '`limits.a.peers` to be true or false',
    ],
    [
      'peers: { udp: "127.0.0.1:1" }\nlimits: { a: { spacing: { every: 1s }, peers: true } }',
      '`limits.a.peers` to be left out: peers can share bucket, window and lockout, and no other rule',
    ],
    ['pool: {}', '`pool` to be an object with one of redis, nats, etcd, size, environment, dns'],
    ['pool: redis', '`pool` to be an object with one of redis, nats, etcd'],
    ['pool: { redis: "redis://x", size: 3 }', 'got redis and size'],
    ['pool: { redis: "http://x" }', '`pool.redis.url` to be an address such as redis://'],
    [
      'pool: { redis: { url: "redis://x", prefix: "{" } }',
      '`pool.redis.prefix` to be a string without',
    ],
    [
      'pool: { redis: { url: "redis://x", deadline: 0 } }',
      '`pool.redis.deadline` to be a duration',
    ],
    ['pool: { nats: { servers: x, deadline: 0 } }', '`pool.nats.deadline` to be a duration'],
    ['pool: { nats: [] }', '`pool.nats.servers` to be addresses'],
    ['pool: { nats: { servers: x, bucket: "a.b" } }', '`pool.nats.bucket` to be letters, digits'],
    ['pool: { etcd: 7 }', '`pool.etcd` to be an object'],
    ['pool: { etcd: [] }', '`pool.etcd.endpoints` to be a list of 1 to 20 addresses'],
    ['pool: { etcd: "etcd:2379" }', '`pool.etcd.endpoints[0]` to be an address such as http://'],
    [
      'pool: { etcd: { endpoints: "http://x", tls: { ca: 7 } } }',
      '`pool.etcd.tls.ca` to be a file',
    ],
    ['pool: { size: 0 }', '`pool.size` to be a whole number'],
    ['pool: { environment: {} }', '`pool.environment.size` to be the name of a variable'],
    ['pool: { dns: { host: x, family: 5 } }', '`pool.dns.family` to be 4 or 6'],
    [
      'pool: { size: 3, onUnavailable: panic }',
      '`pool.onUnavailable` to be one of deny, allow, keep',
    ],
    ['pool: { size: 3, sync: 1s }', '`pool.sync` to be at most a quarter of `memberTimeout`'],
    ['pool: { size: 3, memberTimeot: 1s }', '`pool.memberTimeot`'],
    ['limits: { a: { bucket: { rate: 1 }, pool: true } }', '`limits.a.pool` to be left out, or'],
    ['limits: { a: { bucket: { rate: 1 }, pool: maybe } }', '`limits.a.pool` to be true or false'],
    [
      'pool: { size: 3 }\nlimits: { a: { bucket: { rate: 1 }, pool: true, redis: { url: "redis://x" } } }',
      '`limits.a.pool` to be left out beside redis',
    ],
    [
      'pool: { size: 3 }\nlimits: { a: { busy: {}, pool: true } }',
      '`limits.a.pool` to be left out: a pool can divide bucket, spacing, ramp',
    ],
    ['groups: eu', '`groups` to be an object with `self` and `groups`'],
    ['groups: {}', '`groups.groups` to be 2 to 100 groups by name'],
    [`groups: { self: ap, ${TWO} }`, '`groups.self` to be one of the groups: eu, us, got "ap"'],
    [
      `groups: { self: eu, ${TWO} }`,
      '`groups.key` to be a secret that all groups know (or SLUICE_GROUPS_KEY), got undefined',
    ],
    [`groups: { self: us, ${TWO}, ${KEYED} }`, '`groups.groups.eu.at` to be the base URL'],
    ['groups: { self: a, groups: { a: {}, b: { at: us } } }', '`groups.groups.b.at` to be an addr'],
    ['groups: { self: a, groups: { a: { weight: -1 }, b: {} } }', '`groups.groups.a.weight`'],
    [
      `groups: { self: a, groups: { a: { min: 1 }, b: { min: 1, at: "http://b" } }, ${KEYED} }`,
      '`groups.groups` to be groups whose `min` add up to at most 1',
    ],
    [
      `groups: { self: a, groups: { a: {}, 'b c': { at: "http://b" } }, ${KEYED} }`,
      '`groups.groups.b c` to be a name of at most 64 letters',
    ],
    [`groups: { self: eu, ${TWO}, ${KEYED}, reserve: 2 }`, '`groups.reserve`'],
    [`groups: { self: eu, ${TWO}, ${KEYED}, deadline: 0 }`, '`groups.deadline` to be a duration'],
    [`groups: { self: eu, ${TWO}, ${KEYED}, listen: us }`, '`groups.listen` to be an address such'],
    [`groups: { self: eu, ${TWO}, ${KEYED}, colour: red }`, '`groups.colour`'],
    [
      'limits: { a: { bucket: { rate: 1 }, groups: true } }',
      '`limits.a.groups` to be left out, or',
    ],
    ['limits: { a: { bucket: { rate: 1 }, groups: x } }', '`limits.a.groups` to be true or false'],
    [
      `pool: { size: 3 }\n${GROUPS}limits: { a: { bucket: { rate: 9 }, groups: true, pool: true } }`,
      '`limits.a.groups` to be left out beside pool',
    ],
    [
      `${GROUPS}limits: { a: { spacing: { every: 1s }, groups: true } }`,
      'sluice.yaml:2:11: expected `limits.a` to be a bucket, a window or a lockout on failures: only these',
    ],
    [
      `${GROUPS}limits: { a: { bucket: { rate: 1, burst: 1 }, groups: true } }`,
      'expected `limits.a.bucket.burst` to be at least 2, so that group eu has one token of it, got 1',
    ],
    [
      `${GROUPS}limits: { a: { bucket: { rate: 9 }, groups: true, overrides: [{ match: b, busy: {} }] } }`,
      '`limits.a.overrides[0]` to be a bucket',
    ],
    ['http: { key: { headr: x } }', '`http.key.header`'],
    ['http: { trustProxy: [nowhere] }', '`http.trustProxy[0]`'],
    ['snapshot: { every: 1s }', '`snapshot.file`'],
    ['a: 1\na: 2', 'Map keys must be unique'],
    ['a: 1\n---\nb: 2', 'sluice.yaml:2:1: expected one configuration, got another one after ---'],
    ['allow: [*.org, b]', "sluice.yaml:1:9: a string that begins with * needs quotes, as in '*"],
    ['allow: *', 'sluice.yaml:1:8: a string that begins with * needs quotes'],
    ['listen: { line: off, resp: off, http: off }', '`listen` to be an address for one of line,'],
    [
      'listen: { line: 7000, resp: [1, 7000] }',
      '`listen.resp` to be an address that is listed once',
    ],
    ['- 1', 'a configuration'],
    ['&a [*a]', 'sluice.yaml'],
  ])('%s is refused with %s', (text, message) => {
    expect(problemsOf(text).join('\n')).toContain(message);
  });

  test('errors never show a token', () => {
    expect(problemsOf('admin: { token: "hunter2 hunter2 hunter2" }').join()).toContain(
      'admin.token',
    );
    const [problem] = problemsOf('admin:\n  token: hunter2\n');
    expect(problem).not.toContain('hunter2');
  });

  test.each([
    ['admin: hunter2hunter2'],
    ['peers: { key: hunter2, udp: "127.0.0.1:1" }'],
    ['peers: { key: hunter2hunter2hunter2, udp: nowhere }'],
    ['peers: { udp: "127.0.0.1:1", nats: "nats://me:hunter2@host" }'],
    ['peers: { nats: "nats://me:hunter2@host" }'],
    ['peers: { udp: "127.0.0.1:1", key: hunter2hunter2hunter2, key: b }'],
    ['peers:\n  key: *hunter2hunter2hunter2'],
    ['peers: { redis: "http://:hunter2@host" }'],
    ['resp: hunter2hunter2'],
    ['admin: { tokn: hunter2hunter2 }'],
    ['admin: { token: [hunter2hunter2hunter2 }'],
    ['{"admin": {"token": "hunter2hunter2hunter2"}, "colour": "red"}'],
    ['{ admin: { token: hunter2hunter2hunter2 }, colour: red }'],
    ['limits: { a: { bucket: { rate: 1 }, redis: "http://:hunter2@host" } }'],
    ['limits: { a: { bucket: { rate: x }, redis: "redis://:hunter2@host" } }'],
    ['limits: { a: { bucket: { rate: 1 }, redis: { url: "http://me:hunter2@host" } } }'],
    ['limits: { a: { bucket: { rate: x }, redis: { url: "redis://:hunter2@host" } } }'],
    ['limits: { a: { bucket: { rate: 1 }, etcd: "me:hunter2@host" } }'],
    ['limits: { a: { bucket: { rate: x }, etcd: { endpoints: "http://me:hunter2@host" } } }'],
    ['limits: { a: { bucket: { rate: 1 }, etcd: { endpoints: "http://x", auth: hunter2 } } }'],
    ['pool: { redis: "http://:hunter2@host" }'],
    ['pool: { redis: "redis://:hunter2@host", size: 3 }'],
    ['pool: { nats: { servers: ["nats://me:hunter2@host", 7] } }'],
    ['pool: { etcd: "ftp://me:hunter2@host" }'],
    ['pool: { etcd: { endpoints: "http://x", auth: hunter2 } }'],
    ['pool: { etcd: { endpoints: "http://x", auth: { name: me, password: [hunter2] } } }'],
    ['pool: { etcd: { endpoints: "http://x", auth: { name: me, password: hunter2 }, user: x } }'],
    ['groups: hunter2hunter2hunter2'],
    [`groups: { self: eu, ${TWO}, key: hunter2 }`],
    [`groups: { self: eu, ${TWO}, key: [hunter2hunter2hunter2] }`],
    [`groups: { self: eu, ${TWO}, kye: hunter2hunter2hunter2 }`],
    [`groups: { self: ap, ${TWO}, key: hunter2hunter2hunter2 }`],
    ['groups: { self: a, groups: { a: {}, b: { at: "http://me:hunter2@host" } } }'],
  ])('errors never show a secret: %s', (text) => {
    const problems = problemsOf(text);
    expect(problems).not.toEqual([]);
    expect(problems.join()).not.toContain('hunter2');
  });

  test('a file that cannot be read is one problem', () => {
    expect(loadConfig('/nowhere/sluice.yaml', [])).toEqual({
      problems: [expect.stringMatching(/^cannot read \/nowhere\/sluice.yaml: ENOENT/)],
    });
  });

  test('an empty file is refused: an editor may be writing it', () => {
    expect(loadConfig('/dev/null', [])).toEqual({
      problems: ['/dev/null is empty; {} stands for the defaults'],
    });
  });
});

/** The names of the backends of each limit. */
const backendsOf = (text: string, env: NodeJS.ProcessEnv = {}): Record<string, string[]> =>
  Object.fromEntries(
    configOf(text, env).limits.map(({ name, backends }) => [name, backends.map((own) => own.name)]),
  );

describe('configuration with peers', () => {
  const PEERS = 'peers: { udp: "127.0.0.1:1" }\n';

  test('peers share every limit that they can, unless the limit says otherwise', () => {
    expect(backendsOf(PEERS)).toEqual({ default: ['peers'] });
    expect(backendsOf('')).toEqual({ default: [] });
    const rules = 'a: { bucket: { rate: 1 } }, b: { bucket: { rate: 1 }, peers: false }';
    const others =
      'c: { spacing: { every: 1s } }, d: { bucket: { rate: 1 }, redis: { url: "redis://x" } }';
    const mixed =
      'e: { bucket: { rate: 1 }, overrides: [{ match: x, spacing: { every: 1s } }] }, f: { all: [{ bucket: { rate: 1 } }] }';
    expect(backendsOf(`${PEERS}limits: { ${rules}, ${others}, ${mixed} }`)).toEqual({
      a: ['peers'],
      b: [],
      c: [],
      d: ['redis'],
      e: [],
      f: ['peers'],
    });
  });

  test('a key in the environment does not configure peers by itself', () => {
    const env = { SLUICE_PEERS_KEY: 'a secret of us all' };
    for (const text of ['', 'peers: false']) expect([...configOf(text, env).backends]).toEqual([]);
  });

  test('SLUICE_PEERS=off with --override removes the section of the file', () => {
    const env = { SLUICE_PEERS: 'off', SLUICE_PEERS_KEY: 'a secret of us all' };
    const forced = fromEnvironment(env).map((each) => ({ ...each, isForced: true }));
    const loaded = parseConfigText('sluice.yaml', PEERS, forced);
    expect('config' in loaded && [...loaded.config.backends]).toEqual([]);
  });

  test('the environment sets the addresses, the keys and the seed', () => {
    const env = {
      SLUICE_PEERS: '127.0.0.1:1, 127.0.0.1:2',
      SLUICE_PEERS_KEY: 'a secret of us all, the old secret of us',
      SLUICE_PEERS_SEED: 'the old secret of us',
    };
    expect(JSON.parse(configOf('', env).backends.get('peers')?.identity ?? '')).toMatchObject({
      transport: { kind: 'udp', options: { peers: ['127.0.0.1:1', '127.0.0.1:2'] } },
      secrets: {
        key: ['a secret of us all', 'the old secret of us'],
        seed: 'the old secret of us',
      },
    });
  });
});

describe('configuration with groups', () => {
  test('limits with `groups: true` have the part of the group, and no others', () => {
    const limits = 'a: { bucket: { rate: 9 }, groups: true }, b: { bucket: { rate: 9 } }';
    const [a, b] = configOf(`${GROUPS}limits: { ${limits} }`).limits;
    expect(a.backends).toMatchObject([{ name: 'groups', identity: 'groups 0.5' }]);
    expect(b.backends).toEqual([]);
  });

  test.each([
    ['in this daemon', '', '', []],
    ['with its peers', 'peers: { udp: "127.0.0.1:1" }\n', '', [{ name: 'peers' }]],
    ['in Redis', '', ', redis: { url: "redis://x" }', [{ name: 'redis', view: 'redis://x' }]],
    ['in etcd', '', ', etcd: "http://x:2379"', [{ name: 'etcd', view: ['http://x:2379'] }]],
  ])('the bucket of a group can be kept %s', (_, sections, more, bucketBackends) => {
    const text = `${GROUPS}${sections}limits: { a: { bucket: { rate: 9 }, groups: true${more} } }`;
    const [limit] = configOf(text).limits;
    expect(limit.backends).toMatchObject([...bucketBackends, { name: 'groups' }]);
  });

  test('other groups cannot borrow unless `listen` is set', () => {
    const listenOf = (text: string) => configOf(text).backends.get('groups')?.listener?.addresses;
    expect(listenOf(GROUPS)).toEqual([]);
    expect(listenOf(GROUPS.replace('self', 'listen: 0.0.0.0:7614, self'))).toMatchObject([
      { kind: 'tcp', host: '0.0.0.0', port: 7614 },
    ]);
  });

  test('SLUICE_GROUPS_KEY sets the key, and does not configure groups by itself', () => {
    const env = { SLUICE_GROUPS_KEY: 'another secret of all' };
    for (const text of ['', 'groups: false']) expect([...configOf(text, env).backends]).toEqual([]);
    for (const text of [GROUPS, GROUPS.replace(KEYED, '')]) {
      const { key } = JSON.parse(configOf(text, env).backends.get('groups')?.identity ?? '');
      expect(key).toBe('another secret of all');
    }
  });
});

describe('configuration with a pool', () => {
  test('limits with `pool: true` are divided, and no others', () => {
    const rules = 'a: { bucket: { rate: 1 }, pool: true }, b: { bucket: { rate: 1 } }';
    const sections = 'pool: { size: 3 }\npeers: { udp: "127.0.0.1:1" }\n';
    expect(backendsOf(`${sections}limits: { ${rules} }`)).toEqual({ a: ['pool'], b: ['peers'] });
  });

  test('`pool: false` is no section', () => {
    expect([...configOf('pool: false').backends]).toEqual([]);
  });
});

describe('precedence over the file', () => {
  test('environment variables override the file', () => {
    const env = { SLUICE_LINE: '127.0.0.1:1, /tmp/a.sock', SLUICE_HTTP: 'off', SLUICE_LOG: 'json' };
    const { listen, log } = configOf('listen: { line: 5, resp: 6, http: 7 }\nlog: text', env);
    expect(listen.line).toHaveLength(2);
    expect(listen.resp).toMatchObject([{ port: 6 }]);
    expect(listen.http).toEqual([]);
    expect(log.format).toBe('json');
  });

  test('SLUICE_LOG overrides the format and keeps the interval of denials', () => {
    const { log } = configOf('log: { denials: 1m }', { SLUICE_LOG: 'json' });
    expect(log).toEqual({ format: 'json', level: 'info', denialsMs: 60_000, denialKeys: 0 });
    expect(configOf('').log).toEqual({
      format: 'text',
      level: 'info',
      denialsMs: 10_000,
      denialKeys: 0,
    });
    expect(configOf('log: { denials: off }').log.denialsMs).toBe(Infinity);
  });

  test('SLUICE_SNAPSHOT overrides the file name and keeps the other options', () => {
    const env = { SLUICE_SNAPSHOT: '/b' };
    const snapshot = { file: '/b', everyMs: 30_000, maxAgeMs: 3_600_000 };
    expect(configOf('snapshot: { file: /a, every: 30s, maxAge: 1h }', env)).toMatchObject({
      snapshot,
    });
    expect(configOf('snapshot: { every: 30s, maxAge: 1h }', env)).toMatchObject({ snapshot });
    expect(configOf('snapshot: /a', env)).toMatchObject({ snapshot: { file: '/b' } });
    expect(configOf('snapshot: false', env)).toMatchObject({ snapshot: { file: '/b' } });
  });

  test('an error names the variable that it comes from', () => {
    const loaded = parseConfigText('f', '', fromEnvironment({ SLUICE_LINE: 'nowhere' }));
    expect(loaded).toEqual({
      problems: [
        expect.stringMatching(/^SLUICE_LINE: expected `listen.line\[0\]` to be an address/),
      ],
    });
  });
});
