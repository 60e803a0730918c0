/**
 * Transfers the controls of a peer, page by page: all of them to a daemon that joins, before it listens; those that were
 * set since to one that was suspended or cut off, and to its peers (`returned-peers.ts`).
 *
 *     { wanted: null } ──▶                                     with `since`: those set at that time or later
 *                      ◀── { at: null, next: c1, records }
 *                      ◀── { at: c1, next: c2, records }      (several pages per request)
 *     { wanted: c2 }   ──▶
 *                      ◀── { at: c2, next: null, records }    end
 *
 * The next request acknowledges the pages before it, so the receiver sets the pace. Pages are taken over in any order. A
 * lost page is requested again.
 * Requests and pages have the time of their sender (`control-message.ts`).
 * A cursor is the time at which a record was set, so it stays valid when controls change: those come later in the order.
 *
 * The daemon that has run longest is the source. One that is joining itself has perhaps not all, so another follows. Peers
 * that are back all get a request, up to a number: each may have been cut off from the others.
 */

import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { SharingRules } from './control-auth.ts';
import { clockDifference, messagesOf, onLocalClock } from './control-message.ts';
import type { ControlRecord } from './control-record.ts';
import type { Controls, Sender } from './controls.ts';
import { ReturnedPeers } from './returned-peers.ts';

/** A request is repeated if its pages do not arrive, and a source that sends none is replaced. */
const REQUEST_INTERVAL_MS: Millis = 100;
const SOURCE_TIMEOUT_MS: Millis = 1000;

const PAGES_PER_REQUEST = 16;

/** Pages that are noted while one before them is missing. */
const MAX_PAGES_AHEAD = 64;

/** Daemons that get a request, one after the other. */
const MAX_SOURCES = 3;

/**
 * Controls are also requested if they were set within this time before a silence: a peer counts as alive for some
 * seconds after its last datagram, and clocks of hosts differ.
 */
const SINCE_MARGIN_MS: Millis = 300_000;

/** The first record of a page: when it was set, and how many before it were set at the same time. Null: the first of all. */
type Cursor = readonly [setAt: Millis, skipped: number] | null;

/** How long a daemon that goes on after a suspension looks for its peers, and how often. */
const FIND_PEERS_MS: Millis = 5000;
const FIND_INTERVAL_MS: Millis = 10;

type Outcome = 'complete' | 'joining' | 'silent';

interface Page {
  readonly start: Cursor;
  readonly next: Cursor;
  readonly isJoining: boolean;
}

interface Fetch {
  readonly source: number;
  /** Undefined: all controls. */
  readonly since: Millis | undefined;
  readonly end: (outcome: Outcome) => void;
  cursor: Cursor;
  /** Pages beyond a missing one, by cursor. */
  readonly ahead: Map<string, Page>;
  pages: number;
  repliedAt: Millis;
  cancelRetry: () => void;
}

export class ControlTransfer {
  readonly #clock: Clock;
  readonly #controls: Pick<Controls, 'records' | 'merge'>;
  readonly #channel: FleetChannel;
  readonly #rules: SharingRules;
  #fetch: Fetch | undefined;
  /** The records in the order in which they are sent, as of the last request for the first page. */
  #sorted: readonly ControlRecord[] = [];
  /** False until all controls of a peer are here, or there was no peer. */
  #isComplete = false;
  #hasAsked = false;
  #isRunning = false;
  readonly #returned = new ReturnedPeers();
  /** When peers were alive last. */
  #aliveAt: Millis | undefined;

  constructor(
    clock: Clock,
    controls: Pick<Controls, 'records' | 'merge'>,
    channel: FleetChannel,
    rules: SharingRules,
  ) {
    this.#clock = clock;
    this.#controls = controls;
    this.#channel = channel;
    this.#rules = rules;
  }

  /** To be called every second. Requests controls from peers that were found after the start, and from those that are back. */
  update(): void {
    const peers = this.#channel.peers();
    this.#returned.update(peers, this.#clock.now());
    if (peers.length > 0) this.#aliveAt = this.#clock.now();
    if (this.#isRunning || peers.length === 0) return;
    if (!this.#hasAsked) void this.run();
    else if (!this.#returned.isEmpty) void this.#runReturned();
  }

  /** To be called after a suspension: gets what was set meanwhile. Resolves when it is here, or no peer replies. */
  async resume(): Promise<void> {
    const since = this.#aliveAt;
    const endsAt = this.#clock.now() + FIND_PEERS_MS;
    this.#isComplete = false;
    const isWaiting = (): boolean => this.#isRunning || this.#channel.peers().length === 0;
    while (isWaiting() && this.#clock.now() < endsAt) {
      const at = this.#clock.now() + FIND_INTERVAL_MS;
      await new Promise<void>((resolve) => schedule(this.#clock, at, resolve, false));
    }
    if (!isWaiting()) await this.run(since === undefined ? undefined : since - SINCE_MARGIN_MS);
    this.#isComplete = true;
  }

  /** Gets all controls, or those set since. Resolves to false if no peer replies. */
  async run(since?: Millis): Promise<boolean> {
    const asked = new Set<number>();
    let outcome: Outcome | undefined;
    this.#isRunning = true;
    while (outcome !== 'complete' && asked.size < MAX_SOURCES) {
      const source = this.#channel.peers().find((id) => !asked.has(id));
      if (source === undefined) break;
      asked.add(source);
      this.#hasAsked = true;
      const last = await this.#fetchFrom(source, since);
      if (outcome !== 'joining' || last === 'complete') outcome = last;
    }
    this.#isRunning = false;
    this.#isComplete = true;
    return outcome !== 'silent';
  }

  /** Gets the controls that were set while peers were silent. */
  async #runReturned(): Promise<void> {
    this.#isRunning = true;
    for (const [source, silentSince] of this.#returned.take().slice(0, MAX_SOURCES))
      await this.#fetchFrom(source, silentSince - SINCE_MARGIN_MS);
    this.#isRunning = false;
  }

  close(): void {
    this.#fetch?.cancelRetry();
  }

  /** To be called when a peer has sent controls. */
  noteDaemon(id: number): void {
    this.#returned.noteDaemon(id);
  }

  receive(message: Readonly<Record<string, unknown>>, from: number, sender: Sender): void {
    if (!sender.problem) this.#returned.noteDaemon(from);
    if (Array.isArray(message.records)) {
      const records = onLocalClock(message.records, message.now, this.#clock.now());
      this.#controls.merge(records, sender);
    }
    if (sender.problem) return;
    if ('wanted' in message) this.#sendPages(message, from);
    else if (Array.isArray(message.records)) this.#receivePage(message, from);
  }

  #fetchFrom(source: number, since?: Millis): Promise<Outcome> {
    return new Promise((resolve) => {
      const end = (outcome: Outcome): void => {
        this.#fetch?.cancelRetry();
        this.#fetch = undefined;
        resolve(outcome);
      };
      const repliedAt = this.#clock.now();
      const request = { source, since, end, cursor: null, ahead: new Map() };
      this.#fetch = { ...request, pages: 0, repliedAt, cancelRetry() {} };
      this.#request(this.#fetch);
    });
  }

  #request(fetch: Fetch): void {
    fetch.cancelRetry();
    fetch.pages = 0;
    const { source, cursor, since } = fetch;
    const isFirst = cursor === null && since !== undefined;
    const now = Math.round(this.#clock.now());
    this.#channel.send(JSON.stringify({ wanted: cursor, ...(isFirst && { since, now }) }), source);
    const retry = (): void => {
      if (this.#clock.now() - fetch.repliedAt >= SOURCE_TIMEOUT_MS) fetch.end('silent');
      else this.#request(fetch);
    };
    const at = this.#clock.now() + REQUEST_INTERVAL_MS;
    fetch.cancelRetry = schedule(this.#clock, at, retry, false);
  }

  /** Pages without a gap before them move the cursor. */
  #receivePage({ at, next, joining }: Readonly<Record<string, unknown>>, from: number): void {
    const fetch = this.#fetch;
    if (fetch?.source !== from) return;
    const start = cursorIn(at);
    if (isBefore(start, fetch.cursor)) return;
    if (fetch.ahead.size >= MAX_PAGES_AHEAD && isBefore(fetch.cursor, start)) return;
    fetch.ahead.set(JSON.stringify(start), { start, next: cursorIn(next), isJoining: !!joining });
    this.#advance(fetch);
  }

  #advance(fetch: Fetch): void {
    for (let page = takeNext(fetch); page; page = takeNext(fetch)) {
      fetch.repliedAt = this.#clock.now();
      fetch.cursor = page.next;
      if (page.next === null) {
        fetch.end(page.isJoining ? 'joining' : 'complete');
        return;
      }
      if (++fetch.pages === PAGES_PER_REQUEST) this.#request(fetch);
    }
    for (const [at, { start }] of fetch.ahead)
      if (isBefore(start, fetch.cursor)) fetch.ahead.delete(at);
  }

  #sendPages({ wanted, since, now }: Readonly<Record<string, unknown>>, to: number): void {
    const ownNow = this.#clock.now();
    const start = cursorIn(wanted);
    if (start === null)
      this.#sorted = [...this.#controls.records].sort((a, b) => a.setAt - b.setAt);
    const first = typeof since === 'number' ? since + clockDifference(now, ownNow) : -Infinity;
    const [setAt, skipped] = start ?? [first, 0];
    let from = firstSetAt(this.#sorted, setAt) + skipped;
    let at = start;
    const pages = messagesOf(this.#sorted, this.#rules, { from, most: PAGES_PER_REQUEST });
    if (pages.length === 0) pages.push({ text: '[]', taken: this.#sorted.length - from });
    for (const { text, taken } of pages) {
      from += taken;
      const next = cursorAt(this.#sorted, from);
      const isLastOfPart = next === null && !this.#isComplete;
      const time = Math.round(ownNow);
      const head = JSON.stringify({ at, next, now: time, ...(isLastOfPart && { joining: true }) });
      this.#channel.send(`${head.slice(0, -1)},"records":${text}}`, to);
      at = next;
    }
  }
}

function cursorIn(value: unknown): Cursor {
  const [setAt, skipped] = Array.isArray(value) ? value : [];
  return Number.isFinite(setAt) && Number.isSafeInteger(skipped) && skipped >= 0
    ? [setAt, skipped]
    : null;
}

/** In the order in which records are sent. */
function isBefore(a: Cursor, b: Cursor): boolean {
  if (a === null || b === null) return a === null && b !== null;
  return a[0] === b[0] ? a[1] < b[1] : a[0] < b[0];
}

/** Removes and returns the page at the cursor. */
function takeNext({ ahead, cursor }: Fetch): Page | undefined {
  const at = JSON.stringify(cursor);
  const page = ahead.get(at);
  ahead.delete(at);
  return page;
}

function cursorAt(sorted: readonly ControlRecord[], n: number): Cursor {
  if (n >= sorted.length) return null;
  const { setAt } = sorted[n];
  return [setAt, n - firstSetAt(sorted, setAt)];
}

/** The index of the first record that was set at that time or later: binary search. */
function firstSetAt(sorted: readonly ControlRecord[], setAt: Millis): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle].setAt < setAt) low = middle + 1;
    else high = middle;
  }
  return low;
}
