/**
 * A server that calls go to. It counts the calls in flight itself.
 *
 * A call is a connection that is answered after a while. An aborted one belonged to a killed process; its capacity stays
 * taken until its lease expires.
 */

import { once } from 'node:events';
import { createServer } from 'node:net';
import { now } from './fleet.mjs';

/** Duration of a call, uniformly distributed; a long call outlives the lease it began with. */
const SHORT_MS = [200, 400];
const LONG_MS = 12_000;

export async function startSink() {
  /** In order: { at, type: 'begin' | 'end' | 'aborted' }. */
  const events = [];
  const open = new Set();
  let isOver = false;
  const record = (type) => events.push({ at: now(), type });

  const server = createServer((socket) => {
    const call = { timer: undefined, end: undefined };
    const finish = (type) => {
      if (!open.delete(call)) return;
      clearTimeout(call.timer);
      record(type);
    };
    call.end = () => {
      finish('end');
      socket.end('done');
    };
    socket.once('data', (word) => {
      open.add(call);
      record('begin');
      const [least, most] = SHORT_MS;
      const ms = String(word) === 'long' ? LONG_MS : least + (most - least) * Math.random();
      call.timer = setTimeout(call.end, isOver ? 0 : ms);
    });
    socket.on('error', () => {}).on('close', () => finish('aborted'));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');

  return {
    port: server.address().port,
    events,
    /** Ends all calls, and later ones at once. */
    endAll() {
      isOver = true;
      for (const call of [...open]) call.end();
    },
    stop: () => server.close(),
  };
}

/**
 * The peak of calls in flight, with calls aborted less than `keptMs` ago; and when `most` calls were in flight again, at
 * or after `since`.
 */
export function inFlightOf(events, { most, keptMs, since }) {
  const expiries = events
    .filter(({ type }) => type === 'aborted')
    .map(({ at }) => ({ at: at + keptMs, type: 'expiry' }));
  const all = [...events, ...expiries].toSorted((a, b) => a.at - b.at);
  let [running, leased, peak, fullAt] = [0, 0, 0, Infinity];
  for (const { at, type } of all) {
    running += { begin: 1, end: -1, aborted: -1, expiry: 0 }[type];
    leased += { begin: 0, end: 0, aborted: 1, expiry: -1 }[type];
    peak = Math.max(peak, running + leased);
    if (running >= most && at >= since) fullAt = Math.min(fullAt, at);
  }
  return { peak, fullAt, aborted: expiries.length, calls: count(events, 'begin') };
}

const count = (events, type) => events.filter((event) => event.type === type).length;
