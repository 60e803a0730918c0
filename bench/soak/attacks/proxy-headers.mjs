/**
 * Attacks the key of a request behind a proxy: a client sends headers that name other addresses, and the proxy appends
 * the address that it sees.
 *
 * The daemon trusts one proxy. Whatever the client sends, all its requests must count for the address that the proxy
 * appended: together no more than the limit is allowed, and the count of another client stays as it was.
 */

import { ask, choices, daemonToAttack, http } from '../attacks-support.mjs';

const BURST = 5;
const CONFIG = `
http: { trustProxy: 1, prefix: 'ip:' }
allow: ['ip:127.0.0.1', 'ip:10.0.0.7']
limits: { per-client: { bucket: { rate: 1/h, burst: ${BURST} } } }
`;

const ALLOWED = '10.0.0.7';

/** What the client sends before the proxy appends `X-Forwarded-For: <its address>`. `a` is a random address. */
const TRICKS = {
  nothing: () => '',
  'one address': (a) => `X-Forwarded-For: ${a}\r\n`,
  'an allowed address': () => `X-Forwarded-For: ${ALLOWED}\r\n`,
  'the address of the proxy': () => 'X-Forwarded-For: 127.0.0.1\r\n',
  'many addresses': (a) => `X-Forwarded-For: ${`${a}, `.repeat(50)}${a}\r\n`,
  'two headers': (a) => `X-Forwarded-For: ${a}\r\nX-Forwarded-For: ${ALLOWED}\r\n`,
  'other letters': (a) => `x-FORWARDED-for: ${a}\r\n`,
  'an empty header': () => 'X-Forwarded-For:\r\n',
  commas: () => 'X-Forwarded-For: ,,, ,\r\n',
  'a comma at the end': (a) => `X-Forwarded-For: ${a},\r\n`,
  unknown: () => 'X-Forwarded-For: unknown\r\n',
  'an obfuscated name': () => 'X-Forwarded-For: _hidden\r\n',
  'a port': (a) => `X-Forwarded-For: ${a}:4711\r\n`,
  'IPv6 with a zone': () => 'X-Forwarded-For: fe80::1%eth0\r\n',
  'IPv6 in brackets with a port': () => 'X-Forwarded-For: [2001:db8::1]:4711\r\n',
  'IPv4 in IPv6': () => `X-Forwarded-For: ::ffff:${ALLOWED}\r\n`,
  'leading zeros': () => 'X-Forwarded-For: 010.000.000.007\r\n',
  'hexadecimal and decimal': () => 'X-Forwarded-For: 0x0a000007, 167772167\r\n',
  quotes: () => `X-Forwarded-For: "${ALLOWED}"\r\n`,
  'tabs and spaces': () => `X-Forwarded-For: \t ${ALLOWED} \t\r\n`,
  'a long value': () => `X-Forwarded-For: ${'1.1.1.1, '.repeat(500)}x\r\n`,
  'control characters': () => `X-Forwarded-For: ${ALLOWED}\x0b\r\n`,
  Forwarded: (a) => `Forwarded: for=${a};proto=http;by=${ALLOWED}\r\n`,
  'X-Real-IP and others': (a) =>
    `X-Real-IP: ${a}\r\nClient-IP: ${a}\r\nTrue-Client-IP: ${a}\r\nCF-Connecting-IP: ${a}\r\nX-Client-IP: ${a}\r\n`,
  'a name with an underscore': (a) => `X_Forwarded_For: ${a}\r\n`,
  'many other headers': () => Array.from({ length: 80 }, (_, n) => `A-${n}: x\r\n`).join(''),
};

/** How the proxy writes the address that it appends. */
const APPENDED = {
  'as it is': (address) => address,
  'with a port': (address, port) =>
    address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`,
};

export async function attack({ rounds, seed }) {
  const { below, oneOf } = choices(seed);
  const daemon = await daemonToAttack(CONFIG);
  const counts = { requests: 0, allowed: 0, clients: 0 };
  const isAllowed = async (headers) => {
    counts.requests++;
    const reply = await ask(daemon.port('http'), http('GET /check', headers));
    return /^HTTP\/1\.1 200 /.test(reply);
  };
  try {
    for (let n = 0; n < rounds; n++) {
      // An IPv6 client owns its /64: every address of it is the same client.
      const isIpv6 = below(3) === 0;
      const own = `${n % 250}.${below(250)}`;
      const addressOf = () =>
        isIpv6 ? `2001:db8:${n % 250}:1::${below(60_000).toString(16)}` : `198.18.${own}`;
      let allowed = 0;
      for (const trick of Object.values(TRICKS)) {
        const forged = trick(`203.0.113.${below(250)}`);
        const appended = oneOf(Object.values(APPENDED))(addressOf(), 1024 + below(60_000));
        if (await isAllowed(`${forged}X-Forwarded-For: ${appended}\r\n`)) allowed++;
      }
      counts.allowed += allowed;
      counts.clients++;
      if (allowed > BURST)
        throw new Error(`${allowed} requests of one client allowed, the limit is ${BURST}`);
      const other = `192.0.2.${below(250)}`;
      if (n === 0 && !(await isAllowed(`X-Forwarded-For: ${other}\r\n`)))
        throw new Error(`another client was refused: ${other}`);
    }
    daemon.check();
    return counts;
  } finally {
    await daemon.stop();
  }
}
