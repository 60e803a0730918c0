/**
 * Where calls go: a server that counts for itself how many are under way, and asks nobody.
 *
 * A call is a connection that is answered after a while. One that breaks off belonged to a process that was
 * killed: nobody waits for it any more, and yet its place is taken until its lease ends.
 */

import { once } from 'node:events';
import { createServer } from 'node:net';
import { now } from './fleet.mjs';

/** A call is over after so long, evenly spread; a long one outlives the lease it began with. */
const SHORT_MS = [200, 400];
const LONG_MS = 12_000;

export async function startSink() {
  /** What happened, in order: { at, type: 'begin' | 'end' | 'broken' }. */
  const events = [];
  const open = new Set();
  let isOver = false;
  const note = (type) => events.push({ at: now(), type });

  const server = createServer((socket) => {
    const call = { timer: undefined, end: undefined };
    const over = (type) => {
      if (!open.delete(call)) return;
      clearTimeout(call.timer);
      note(type);
    };
    call.end = () => {
      over('end');
      socket.end('done');
    };
    socket.once('data', (word) => {
      open.add(call);
      note('begin');
      const [least, most] = SHORT_MS;
      const ms = String(word) === 'long' ? LONG_MS : least + (most - least) * Math.random();
      call.timer = setTimeout(call.end, isOver ? 0 : ms);
    });
    socket.on('error', () => {}).on('close', () => over('broken'));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');

  return {
    port: server.address().port,
    events,
    /** Everybody may go home, and whoever comes from here on. */
    endAll() {
      isOver = true;
      for (const call of [...open]) call.end();
    },
    stop: () => server.close(),
  };
}

/**
 * The most there were at once, those under way and those that were broken off less than `keptMs` ago; and
 * when so many as `most` were under way again, at or after `since`.
 */
export function atOnce(events, { most, keptMs, since }) {
  const frees = events
    .filter(({ type }) => type === 'broken')
    .map(({ at }) => ({ at: at + keptMs, type: 'free' }));
  const all = [...events, ...frees].toSorted((a, b) => a.at - b.at);
  let [living, dead, peak, fullAt] = [0, 0, 0, Infinity];
  for (const { at, type } of all) {
    living += { begin: 1, end: -1, broken: -1, free: 0 }[type];
    dead += { begin: 0, end: 0, broken: 1, free: -1 }[type];
    peak = Math.max(peak, living + dead);
    if (living >= most && at >= since) fullAt = Math.min(fullAt, at);
  }
  return { peak, fullAt, broken: frees.length, calls: count(events, 'begin') };
}

const count = (events, type) => events.filter((event) => event.type === type).length;
