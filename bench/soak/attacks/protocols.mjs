/**
 * Attacks the stream protocols of a daemon: valid, mutated and random bytes over line protocol, RESP and HTTP, cut
 * anywhere, aborted anywhere, with more keys than the limits hold.
 *
 * Beside the attackers, other clients use keys of their own. Invariants: the daemon lives and its memory is bounded, every
 * one of these clients is answered, and gets exactly what its limit allows. A limit whose keys are evicted by the attack
 * never allows more than that.
 */

import { ask, choices, daemonToAttack, exchange, http, resp } from '../attacks-support.mjs';

const BURST = 5;
const CHECKS = 8;
const ATTACKERS = 12;

const CONFIG = `
http: { trustProxy: 1, prefix: 'ip:' }
bounds: { slow: 2s }
limits:
  exact: { bucket: { rate: 1/h, burst: ${BURST} }, match: 'exact:*' }
  evicting: { bucket: { rate: 1/h, burst: ${BURST} }, match: 'evicting:*', maxKeys: 500 }
  flights: { concurrency: 3, match: 'flight:*', maxKeys: 500, permitTimeout: 1s }
  rest: { bucket: { rate: 100/s, burst: 10 }, maxKeys: 500 }
`;

const KEYS = [
  'a',
  '',
  '*',
  'flight:1',
  'é',
  '__proto__',
  'x'.repeat(5000),
  'a b',
  'a\rb',
  '%00',
  '{}',
];
const NUMBERS = [
  '0',
  '1',
  '-1',
  '1.5',
  '1e15',
  '9007199254740993',
  '99999999999999999999',
  'NaN',
  'x',
  '',
];
const PATHS = [
  '/check',
  '/batch',
  '/settle',
  '/take-up-to',
  '/give-back',
  '/inspect',
  '/explain',
  '/limits',
  '/history',
  '/keys',
  '/config',
  '/page/',
  '/metrics',
  '/healthz',
  '/reload',
  '/feed',
  '/',
  '/../etc/passwd',
  '//',
  '/check/%2e%2e/reload',
  '*',
];
const METHODS = ['GET', 'POST', 'HEAD', 'PUT', 'OPTIONS', 'CONNECT', 'TRACE', 'get', 'PRI'];

/** Streams that a client could send, some of them valid. */
function streams({ oneOf, below, upTo, noise }) {
  const key = () => (below(2) ? `evicting:${below(5000)}` : oneOf([...KEYS, `k${below(5000)}`]));
  const number = () => oneOf(NUMBERS);
  const body = () =>
    oneOf([
      () => JSON.stringify(upTo(20, () => ({ key: key(), cost: below(3) }))),
      () => JSON.stringify({ key: key(), cost: Number(number()), hold: true }),
      () => `{"__proto__":{"key":"a"},"constructor":1,"key":${'['.repeat(below(5000))}`,
      () => `permit=${below(100)}-0&outcome=ok&used=${number()}`,
      () => noise(200).toString('latin1'),
    ])();
  const headers = () =>
    upTo(5, () =>
      oneOf([
        () =>
          `X-Forwarded-For: ${oneOf(['10.0.0.1', '::1', 'unknown', '[::1]:80', ',,,', 'a'.repeat(3000)])}\r\n`,
        () => 'Transfer-Encoding: chunked\r\n',
        () => `Content-Length: ${number()}\r\n`,
        () => 'Expect: 100-continue\r\n',
        () => 'Upgrade: websocket\r\nConnection: Upgrade\r\n',
        () => 'Content-Type: application/json\r\n',
        () => `X-${below(1000)}: ${'v'.repeat(below(500))}\r\n`.repeat(1 + below(120)),
      ])(),
    ).join('');
  return {
    line: () => Buffer.from(upTo(200, () => `${key()}\n`).join('')),
    resp: () =>
      Buffer.from(
        upTo(50, () =>
          oneOf([
            () =>
              resp(
                'SLUICE.CHECK',
                oneOf(['*', 'rest', 'flights', 'none']),
                key(),
                number(),
                'HOLD',
              ),
            () => resp('CL.THROTTLE', key(), number(), number(), number(), number()),
            () => resp('SLUICE.SETTLE', `${below(100)}-0`, 'ok', 'USED', number()),
            () => resp('SLUICE.TAKEUPTO', 'rest', key(), number(), 'HOLD'),
            () => resp('SLUICE.INSPECT', key()),
            () =>
              resp(
                oneOf(['HELLO', 'AUTH', 'CLIENT', 'COMMAND', 'INFO', 'QUIT', 'POST']),
                ...upTo(4, number),
              ),
            () => `*${number()}\r\n$${number()}\r\n`,
            () => `PING "${key()}\r\n`,
          ])(),
        ).join(''),
      ),
    http: () =>
      Buffer.from(
        upTo(10, () => {
          const text = below(2) ? body() : '';
          const length = text && below(4) ? `Content-Length: ${Buffer.byteLength(text)}\r\n` : '';
          const query = below(2) ? `?key=${encodeURIComponent(key())}&cost=${number()}&hold=1` : '';
          const more = `${headers()}${length}`.replaceAll('Connection: Upgrade\r\n', '');
          return http(`${oneOf(METHODS)} ${oneOf(PATHS)}${query}`, more, text).replace(
            'Connection: close\r\n',
            '',
          );
        }).join(''),
        'latin1',
      ),
  };
}

/** By protocol: a check of a key, and what the reply to an allowed one contains. */
const CHECK = {
  line: [(key) => `${key}\n`, /^OK\n$/],
  resp: [(key) => resp('SLUICE.CHECK', '*', key), /^\*\d+\r\n:1\r\n/],
  http: [(key) => http(`GET /check?key=${key}`), /^HTTP\/1\.1 200 /],
};

export async function attack({ rounds, seed }) {
  const chosen = choices(seed);
  const { oneOf, below, mutated, noise } = chosen;
  const daemon = await daemonToAttack(CONFIG);
  const make = streams(chosen);
  const protocols = Object.keys(make);
  const counts = {
    streams: 0,
    bytes: 0,
    aborted: 0,
    checks: 0,
    allowed: 0,
    slowestMs: 0,
    memoryMB: 0,
  };

  const attackOnce = async () => {
    const protocol = oneOf(protocols);
    const valid = make[below(10) ? protocol : oneOf(protocols)](); // sometimes another protocol's
    const bytes = oneOf([
      () => valid,
      () => mutated(valid),
      () => mutated(valid),
      () => noise(500),
    ])();
    const cut = below(bytes.length + 1);
    const isAborted = below(4) === 0;
    counts.streams++;
    counts.bytes += bytes.length;
    if (isAborted) counts.aborted++;
    const flooding = exchange(
      daemon.port(protocol),
      [bytes.subarray(0, cut), bytes.subarray(cut)],
      isAborted,
    );
    // A feed, or a body that never comes, would last as long as the bound for slow clients.
    await Promise.race([flooding, new Promise((done) => setTimeout(done, 300).unref())]);
  };

  const checkLimit = async (key, isExact) => {
    let allowed = 0;
    for (let n = 0; n < CHECKS; n++) {
      const protocol = oneOf(protocols);
      const [request, isAllowed] = CHECK[protocol];
      const sentAt = performance.now();
      const reply = await ask(daemon.port(protocol), request(key));
      counts.slowestMs = Math.max(counts.slowestMs, Math.round(performance.now() - sentAt));
      counts.checks++;
      if (isAllowed.test(reply)) allowed++;
    }
    counts.allowed += allowed;
    if (allowed > BURST || (isExact && allowed < BURST))
      throw new Error(`${key}: ${allowed} of ${CHECKS} allowed, the limit is ${BURST}`);
  };

  try {
    for (let n = 0; n < rounds; n++) {
      await Promise.all([
        ...Array.from({ length: ATTACKERS }, attackOnce),
        checkLimit(`exact:${seed}-${n}`, true),
        checkLimit(`evicting:other-${seed}-${n}`, false),
      ]);
      counts.memoryMB = Math.max(counts.memoryMB, daemon.check());
    }
    return counts;
  } finally {
    await daemon.stop();
  }
}
