/**
 * Fuzz test of the peers backend: a million datagrams from an attacker who has recorded all traffic, but has no key.
 *
 *     npm run soak:peers-fuzz                                      a million
 *     npm run soak:peers-fuzz -- --datagrams 20000 --seed 7
 *     npm run soak:peers-fuzz -- --write                           a million, and the results into docs/reference/peers.md
 *
 * Three nodes on virtual time serve calls, crash and restart. In between, one of them gets noise, forgeries and recorded
 * datagrams (of running, crashed and restarted nodes, and its own), also truncated, extended or with flipped bits.
 * Invariants:
 *
 *   - nothing throws
 *   - no bucket and no lock-out changes by a single bit
 *   - no node that is down is a peer, and every node that is up is one
 *   - a node sends only a few datagrams per injected one, and memory does not grow
 */

import { parseArgs } from 'node:util';
import { MAX_DATAGRAM_BYTES } from '../../dist/backends/peers/bytes.js';
import { encode } from '../../dist/backends/peers/codec.js';
import { PEER_DEFAULTS } from '../../dist/backends/peers/context.js';
import { createDatagramAuth } from '../../dist/backends/peers/datagram-auth.js';
import { createPeersBackend } from '../../dist/backends/peers/factory.js';
import { MemoryHub } from '../../dist/backends/peers/memory-transport.js';
import { PeerNode } from '../../dist/backends/peers/node.js';
import { seededRandom } from '../../dist/core/random.js';
import { createPolicy } from '../../dist/policies/limit.js';
import { VirtualClock } from '../../dist/testing/index.js';
import { isToWrite, madeBy, whole, writeFigures } from '../report.mjs';

const DATAGRAMS = 1_000_000;

const { values: options } = parseArgs({
  options: {
    datagrams: { type: 'string', default: `${DATAGRAMS}` },
    seed: { type: 'string', default: '1' },
    write: { type: 'boolean', default: false },
  },
});
const datagrams = Number(options.datagrams);
const writes = isToWrite(datagrams >= DATAGRAMS);
const random = seededRandom(Number(options.seed));
const below = (n) => Math.floor(random() * n);
const oneOf = (list) => list[below(list.length)];

const KEY = 'a secret of the fuzzed fleet';
const NODES = 3;
const ROUND = 500;
const DELAY_MS = [1, 3];
const MAX_RECORDED = 5000;
const MAX_GROWTH_BYTES = 24 * 1024 * 1024;
/** Datagrams sent per injected one, on average. */
const MAX_SENT_PER_DATAGRAM = 3;

const clock = new VirtualClock(1_700_000_000_000);
const hub = new MemoryHub({ clock, seed: below(2 ** 32), delayMs: DELAY_MS, isLoopback: false });

/** The newest datagrams of the fleet, and some of the oldest. */
const recorded = [];

/** Datagrams that may still be in flight: the first copy to arrive is legitimate, from any source. */
let fresh = [];
const record = (bytes) => fresh.push(Uint8Array.from(bytes)); // a copy, without the shared buffer

/** Delivers everything in flight: from then on it is a replay. */
async function settle() {
  const old = fresh;
  fresh = [];
  await clock.advanceAsync(DELAY_MS[1] + 1);
  for (const bytes of old) {
    if (recorded.length < MAX_RECORDED) recorded.push(bytes);
    else recorded[MAX_RECORDED / 2 + below(MAX_RECORDED / 2)] = bytes;
  }
}

let sent = 0;

/** A transport that records datagrams, and through which any datagram can be injected. */
function tapped(inner) {
  const tap = {
    ...inner,
    open: (onDatagram) => {
      tap.inject = onDatagram;
      return inner.open(onDatagram);
    },
    broadcast(bytes) {
      sent++;
      record(bytes);
      inner.broadcast(bytes);
    },
    send(to, bytes) {
      sent++;
      record(bytes);
      inner.send(to, bytes);
    },
  };
  return tap;
}

async function member(n) {
  const tap = tapped(hub.transport(`node ${n}`));
  const nodeRandom = seededRandom(below(2 ** 32));
  const context = { clock, random: nodeRandom };
  const node = new PeerNode({
    ...{ ...context, options: { ...PEER_DEFAULTS, name: `${n}` }, transport: tap, key: KEY },
  });
  const share = (name, limit) =>
    createPeersBackend(createPolicy(limit, nodeRandom), { ...context, name, maxKeys: 1000 }, node);
  const backend = share('api', { bucket: { rate: 1, burst: 1000 } });
  const login = share('login', { lockout: { after: 3, within: '1m', lock: ['5s', '1m'] } });
  await node.open();
  return { tap, node, backend, login };
}

const buckets = ({ backend, login }) =>
  [backend, login]
    .map((each) => Buffer.from(each.snapshot().entries.buffer).toString('latin1'))
    .join();

/** Attempts and their ends. */
function logIn({ login }) {
  const key = `user ${below(20)}`;
  if (login.check(key, 1).verdict !== 'allow' || random() < 0.1) return;
  login.update(key, { report: random() < 0.3 ? 'success' : 'failure' });
}

const KINDS = [
  'hello',
  'hello-ack',
  'report',
  'heartbeat',
  'nack',
  'evicted',
  'state-request',
  'state',
];

/** A well-formed message in the name of any node. */
function message(members) {
  const ids = [...members.map(({ node }) => node.view().id), 1 + below(2 ** 48 - 1)];
  const seq = below(oneOf([10, 1000, 2 ** 40]));
  const entries = [below(2 ** 32), below(2 ** 31), below(2 ** 31), 1 + below(1000)];
  const included = {
    isComplete: random() < 0.5,
    sets: [{ origin: oneOf(ids), highest: seq, missing: [1, seq] }],
  };
  return {
    ...{ kind: oneOf(KINDS), from: oneOf(ids), to: oneOf([0, ...ids]), nonce: below(2 ** 48) },
    ...{ seq, first: below(seq + 1), datagramSeq: seq, name: 'x', ranges: [1, seq], entries },
    ...{ limit: below(2 ** 32), cursor: below(100), next: below(100), ageMs: seq },
    ...{ buckets: 1, included, refillTimes: entries.slice(1) },
  };
}

const noise = () =>
  Uint8Array.from({ length: below(random() < 0.9 ? 100 : 2000) }, () => below(256));
const foreignAuth = createDatagramAuth('another key altogether');

function corrupted(bytes) {
  const copy = Uint8Array.from(bytes);
  switch (below(4)) {
    case 0:
      copy[below(copy.length)] ^= 1 << below(8);
      return copy;
    case 1:
      return copy.subarray(0, below(copy.length));
    case 2:
      return copy.subarray(1 + below(copy.length - 1));
    default:
      return Buffer.concat([copy, noise()]);
  }
}

const INPUTS = [
  noise,
  (members) => encode(message(members)),
  (members) => foreignAuth.encrypt(encode(message(members))),
  (members) => Buffer.concat([encode(message(members)), Buffer.alloc(16, below(256))]),
  () => oneOf(recorded),
  () => oneOf(recorded),
  () => oneOf(recorded),
  () => corrupted(oneOf(recorded)),
  () => corrupted(oneOf(recorded)),
];

/** Memory in use, after some time for finalisation. */
const memory = async () => {
  for (let n = 0; n < 3; n++) {
    globalThis.gc?.();
    await new Promise((done) => setTimeout(done, 20));
  }
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
};

const members = [];
for (let n = 0; n < NODES; n++) members.push(await member(n));
await clock.advanceAsync(2000);
await settle();

let injected = 0;
let replies = 0;
let restarts = 0;
let warm;
const startedAt = performance.now();
for (let round = 0; injected < datagrams; round++) {
  for (const each of members) {
    for (let n = below(4); n > 0; n--) each.backend.check(`key ${below(50)}`, 1 + below(3));
    for (let n = below(4); n > 0; n--) logIn(each);
  }
  await clock.advanceAsync(oneOf([1, 20, 200]));
  await settle();
  const target = oneOf(members);
  const before = buckets(target);
  const sentBefore = sent;
  for (let n = 0; n < ROUND && injected < datagrams; n++, injected++) {
    const bytes = oneOf(INPUTS)(members);
    if (bytes.length > MAX_DATAGRAM_BYTES + 5000) throw new Error('too long for a datagram');
    target.tap.inject(bytes, oneOf(['evil', 'node 0', 'node 1', 'node 2']));
  }
  replies += sent - sentBefore;
  if (buckets(target) !== before) throw new Error(`round ${round}: a bucket was changed`);
  if (random() < 0.1) {
    // A node crashes and restarts after a while, sometimes so late that its peers have evicted it.
    const n = below(NODES);
    await members[n].node.close();
    await clock.advanceAsync(oneOf([10, 1000, 20_000, 100_000]));
    members[n] = await member(n);
    await clock.advanceAsync(2000);
    restarts++;
  }
  if (injected >= datagrams / 4) warm ??= await memory();
}
const seconds = (performance.now() - startedAt) / 1000;

await clock.advanceAsync(10_000);
for (const { node } of members) {
  const names = node.view().peers.map(({ name }) => name);
  if (names.length !== NODES - 1) throw new Error(`expected ${NODES - 1} peers, got ${names}`);
}
const grown = (await memory()) - warm;
if (grown > MAX_GROWTH_BYTES) throw new Error(`memory grew by ${grown} bytes`);
if (replies > MAX_SENT_PER_DATAGRAM * injected)
  throw new Error(`${replies} datagrams sent for ${injected} injected ones`);
const text = `${whole(injected)} such datagrams, through ${whole(restarts)} restarts: no exception, no changed bucket, and
${whole(replies)} datagrams sent in reply. Memory was ${(Math.abs(grown) / 1e6).toFixed(1)} MB ${grown < 0 ? 'lower' : 'higher'} at the end than after a quarter.`;
console.log(text);
if (writes) {
  const about = madeBy('npm run soak:peers-fuzz', `${seconds.toFixed(0)} s`);
  writeFigures('docs/reference/peers.md', 'peers-fuzz', `${text}\n\n${about}`);
}
