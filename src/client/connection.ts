/**
 * The line to the daemon: one connection, and whether it is any good.
 *
 *     trying ── the daemon greets ──▶ open ── a failure ──▶ away: nobody is sent
 *        │                                                   │    ▲
 *        └──────────── no connection ────────────────────────┼────┤ no greeting
 *                       open ◀── it greets ── a try in the background, after a pause
 *
 * Only the very first try has somebody waiting for it. After a failure nobody waits for a socket
 * until the daemon has greeted again; pauses grow with every try that fails, and chance spreads them so
 * that a fleet does not come back as one.
 */

import { connect as connectPlain, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { alarm, type Millis } from '../core/clock.ts';
import { UnavailableError } from '../core/errors.ts';
import { show } from './address.ts';
import type { Settings } from './options.ts';
import { bytesOf, Complaint, encode, Reader, type Told } from './resp.ts';

/** What the line tells its owner. */
export interface Ears {
  /** The daemon has greeted: what waits can be sent. */
  opened(): void;
  /** The next answer, in the order of what was sent. */
  answered(told: Told): void;
  /** There will be no answer to anything that was sent. */
  lost(why: UnavailableError): void;
}

/** How long a daemon may take to greet: nobody waits for it but the first who ask. */
const GREETING_MS_MAX: Millis = 1_000;

type State = 'trying' | 'open' | 'away' | 'closed';

export class Line {
  /** Connections made, from the start on. */
  connections = 0;
  readonly #settings: Settings;
  readonly #ears: Ears;
  #state: State = 'trying';
  #why: UnavailableError;
  #socket: Socket | undefined;
  #isBusy = false;
  #failures = 0;
  #cancel: (() => void) | undefined;
  #triesAt: Millis = 0;

  constructor(settings: Settings, ears: Ears) {
    this.#settings = settings;
    this.#ears = ears;
    this.#why = this.#unavailable('it was not reached yet');
    this.#try();
  }

  get state(): State {
    return this.#state;
  }

  /** Why nobody is sent. */
  get why(): UnavailableError {
    return this.#why;
  }

  /** How long it is away at least. */
  get awayMs(): Millis {
    return Math.max(1, Math.ceil(this.#triesAt - this.#settings.clock.now()));
  }

  /** Bytes, as one character for each. Only while it is open. */
  write(text: string): void {
    this.#socket?.write(text, 'latin1');
  }

  /** While somebody waits for an answer the process stays; otherwise the line does not keep it. */
  busy(isBusy: boolean): void {
    if (isBusy === this.#isBusy) return;
    this.#isBusy = isBusy;
    if (isBusy) this.#socket?.ref();
    else this.#socket?.unref();
  }

  /** The daemon did not answer. */
  fail(why: unknown): void {
    if (this.#state === 'closed') return;
    this.#hangUp();
    const { clock, random, pauseMsFirst, pauseMsMax } = this.#settings;
    const most = Math.min(pauseMsMax, pauseMsFirst * 2 ** Math.min(this.#failures++, 30));
    this.#state = 'away';
    this.#why = this.#unavailable(why);
    this.#triesAt = clock.now() + most * (0.5 + random() / 2);
    this.#cancel = alarm(clock, this.#triesAt, () => this.#tryAgain(), false);
    this.#ears.lost(this.#why);
  }

  close(): void {
    this.#hangUp();
    this.#state = 'closed';
    this.#why = this.#unavailable('the client is closed');
    this.#ears.lost(this.#why);
  }

  #unavailable(why: unknown): UnavailableError {
    return new UnavailableError(`sluice at ${show(this.#settings.place)}`, why);
  }

  #hangUp(): void {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#socket?.destroy();
    this.#socket = undefined;
  }

  /** What makes no sense to the system was told when the client was made; later it is an outage. */
  #tryAgain(): void {
    try {
      this.#try();
    } catch (error) {
      this.fail(error);
    }
  }

  #try(): void {
    const { clock, place, tls, password } = this.#settings;
    const socket = tls ? connectTls({ ...tls, ...place }) : connectPlain(place);
    const reader = new Reader();
    this.#socket = socket;
    if (!this.#isBusy) socket.unref();
    /** Whatever a socket says after we have left it is no news. */
    const isOurs = (): boolean => this.#socket === socket;
    const fail = (why: unknown): void => {
      if (isOurs()) this.fail(why);
    };
    const late = `no greeting within ${GREETING_MS_MAX} ms`;
    this.#cancel = alarm(clock, clock.now() + GREETING_MS_MAX, () => fail(late), false);
    socket.setNoDelay(true);
    const auth = password === undefined ? [] : ['AUTH', 'default', bytesOf(password)];
    socket.write(encode(['HELLO', '3', ...auth]), 'latin1'); // sent as soon as there is somebody
    socket.on('error', fail);
    socket.on('close', () => fail('it hung up'));
    socket.on('data', (chunk: Buffer) => {
      const hear = (told: Told): void => {
        if (isOurs()) this.#hear(told);
      };
      if (!reader.read(chunk, hear)) fail('what it says is no RESP');
    });
  }

  #hear(told: Told): void {
    if (this.#state === 'open') this.#ears.answered(told);
    else if (told instanceof Complaint) this.fail(told.text);
    else this.#greeted();
  }

  #greeted(): void {
    this.#cancel?.();
    this.#cancel = undefined;
    this.#state = 'open';
    this.#failures = 0;
    this.connections++;
    this.#ears.opened();
  }
}
