/**
 * Transfers all controls of a peer to a daemon that joins, page by page, before it listens.
 *
 *     { wanted: null } ──▶
 *                      ◀── { at: null, next: c1, records }
 *                      ◀── { at: c1, next: c2, records }      (several pages per request)
 *     { wanted: c2 }   ──▶
 *                      ◀── { at: c2, next: null, records }    end
 *
 * The next request acknowledges the pages before it, so the receiver sets the pace. A lost page is requested again.
 * A cursor is the time at which a record was set, so it stays valid when controls change: those come later in the order.
 *
 * The daemon that has run longest is the source. One that is joining itself has perhaps not all, so another follows.
 */

import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { messagesOf } from './control-message.ts';
import type { ControlRecord } from './control-record.ts';
import type { Controls } from './controls.ts';

/** A request is repeated if its pages do not arrive, and a source that sends none is replaced. */
const REQUEST_INTERVAL_MS: Millis = 100;
const SOURCE_TIMEOUT_MS: Millis = 1000;

const PAGES_PER_REQUEST = 16;

/** Daemons that are asked, one after the other. */
const MAX_SOURCES = 3;

/** The first record of a page: when it was set, and how many before it were set at the same time. Null: the first of all. */
type Cursor = readonly [setAt: Millis, skipped: number] | null;

type Outcome = 'complete' | 'joining' | 'silent';

interface Fetch {
  readonly source: number;
  readonly end: (outcome: Outcome) => void;
  cursor: Cursor;
  pages: number;
  repliedAt: Millis;
  cancelRetry: () => void;
}

export class ControlTransfer {
  readonly #clock: Clock;
  readonly #controls: Pick<Controls, 'records' | 'merge'>;
  readonly #channel: FleetChannel;
  #fetch: Fetch | undefined;
  /** The records in the order in which they are sent, as of the last request for the first page. */
  #sorted: readonly ControlRecord[] = [];
  /** False until all controls of a peer are here, or there was no peer. */
  #isComplete = false;
  #hasAsked = false;

  constructor(clock: Clock, controls: Pick<Controls, 'records' | 'merge'>, channel: FleetChannel) {
    this.#clock = clock;
    this.#controls = controls;
    this.#channel = channel;
  }

  /** True if there are peers, and their controls were not requested yet. */
  get isDue(): boolean {
    return !this.#hasAsked && this.#channel.peers().length > 0;
  }

  /** Gets all controls. Resolves to false if no peer replies. */
  async run(): Promise<boolean> {
    const asked = new Set<number>();
    let outcome: Outcome | undefined;
    while (outcome !== 'complete' && asked.size < MAX_SOURCES) {
      const source = this.#channel.peers().find((id) => !asked.has(id));
      if (source === undefined) break;
      asked.add(source);
      this.#hasAsked = true;
      const last = await this.#fetchFrom(source);
      if (outcome !== 'joining' || last === 'complete') outcome = last;
    }
    this.#isComplete = true;
    return outcome !== 'silent';
  }

  close(): void {
    this.#fetch?.cancelRetry();
  }

  receive(message: Readonly<Record<string, unknown>>, from: number): void {
    if ('wanted' in message) this.#sendPages(message.wanted, from);
    else if (Array.isArray(message.records)) this.#receivePage(message, message.records, from);
  }

  #fetchFrom(source: number): Promise<Outcome> {
    return new Promise((resolve) => {
      const end = (outcome: Outcome): void => {
        this.#fetch?.cancelRetry();
        this.#fetch = undefined;
        resolve(outcome);
      };
      const repliedAt = this.#clock.now();
      this.#fetch = { source, end, cursor: null, pages: 0, repliedAt, cancelRetry() {} };
      this.#request(this.#fetch);
    });
  }

  #request(fetch: Fetch): void {
    fetch.cancelRetry();
    fetch.pages = 0;
    this.#channel.send(JSON.stringify({ wanted: fetch.cursor }), fetch.source);
    const retry = (): void => {
      if (this.#clock.now() - fetch.repliedAt >= SOURCE_TIMEOUT_MS) fetch.end('silent');
      else this.#request(fetch);
    };
    const at = this.#clock.now() + REQUEST_INTERVAL_MS;
    fetch.cancelRetry = schedule(this.#clock, at, retry, false);
  }

  /** Takes over the records of any page; only the next one of the open request moves the cursor. */
  #receivePage(
    { at, next, joining }: Readonly<Record<string, unknown>>,
    records: readonly unknown[],
    from: number,
  ): void {
    this.#controls.merge(records);
    const fetch = this.#fetch;
    if (fetch?.source !== from || JSON.stringify(at) !== JSON.stringify(fetch.cursor)) return;
    fetch.repliedAt = this.#clock.now();
    fetch.cursor = cursorIn(next);
    if (fetch.cursor === null) fetch.end(joining === true ? 'joining' : 'complete');
    else if (++fetch.pages === PAGES_PER_REQUEST) this.#request(fetch);
  }

  #sendPages(wanted: unknown, to: number): void {
    const start = cursorIn(wanted);
    if (start === null)
      this.#sorted = [...this.#controls.records].sort((a, b) => a.setAt - b.setAt);
    let from = start === null ? 0 : firstSetAt(this.#sorted, start[0]) + start[1];
    let at = start;
    const pages = messagesOf(this.#sorted, { from, most: PAGES_PER_REQUEST });
    if (pages.length === 0) pages.push({ text: '[]', taken: this.#sorted.length - from });
    for (const { text, taken } of pages) {
      from += taken;
      const next = cursorAt(this.#sorted, from);
      const isLastOfPart = next === null && !this.#isComplete;
      const head = JSON.stringify({ at, next, ...(isLastOfPart && { joining: true }) });
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
