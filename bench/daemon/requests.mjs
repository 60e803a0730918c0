/** Prepared requests of load generators, and the number of newlines in a reply, by which replies are counted. */

const resp = (...words) =>
  `*${words.length}\r\n${words.map((w) => `$${w.length}\r\n${w}\r\n`).join('')}`;

/** The request of each protocol, and the number of newlines in its reply. */
const KINDS = {
  line: { request: (key) => `${key}\n`, newlines: 1 },
  incr: { request: (key) => resp('INCR', key), newlines: 1 },
  lua: {
    request: (key, extra) => resp('EVALSHA', extra[0], '1', key, ...extra.slice(1)),
    newlines: 1,
  },
  http: {
    request: (key) => `GET /check?limit=default&key=${key} HTTP/1.1\r\nHost: localhost\r\n\r\n`,
    newlines: 9,
  },
  root: { request: () => 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n', newlines: 6 },
  cell: { request: (key) => resp('CL.THROTTLE', key, '1000000000', '1000000', '1'), newlines: 6 },
};

const BATCHES = 32;

export const newlinesOf = (kind) => KINDS[kind].newlines;

/** Batches of `depth` pipelined requests with keys in rotation. */
export const batchesOf = (kind, depth, { keys = 1000, extra = [] } = {}) =>
  Array.from({ length: BATCHES }, (_, b) =>
    Buffer.from(
      Array.from({ length: depth }, (_, n) =>
        KINDS[kind].request(`user:${((b * depth + n) * 7919) % keys}`, extra),
      ).join(''),
    ),
  );
