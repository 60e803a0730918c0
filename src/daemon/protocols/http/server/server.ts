/**
 * HTTP on sockets: connections taken over with a bound on everything, and hung up in the end.
 *
 *     const surface = httpSurface(setting, now);
 *     createServer((socket) => surface.accept(socket, isLoopback)).listen(7612, '127.0.0.1');
 *
 * Each begins on the short way (`connection.ts`), which is for plain checks, and goes the long one
 * (`node-server.ts`) from the first other request on. What is asked and answered is the desk's affair: `handler.ts`.
 */

import type { Socket } from 'node:net';
import { alarm, type Clock, type HeldClock, type Millis } from '../../../../core/clock.ts';
import { canBeHeardInPlace } from '../../../server/read-buffer.ts';
import type { AccessSetting } from '../access.ts';
import { HTTP_BOUNDS, type HttpBounds, idleTimeoutOf } from '../bounds.ts';
import { Feed, type FeedCounts } from '../events-stream.ts';
import { Desk, type DeskSetting } from '../handler.ts';
import type { Heard, KeyOf } from '../key.ts';
import type { Reply } from '../reply.ts';
import { ShortWay, type ShortWayTold } from './fast-path/connection.ts';
import { ReplyWriter } from './fast-path/parse.ts';
import { LongWay, refuseSilent } from './node-server.ts';

/** What stays as long as the daemon does. */
export interface HttpSetting extends Omit<DeskSetting, 'bounds' | 'feed' | 'admin' | 'keyOf'> {
  readonly clock: Clock | HeldClock;
}

/** What a configuration says, until the next one does. */
export interface HttpNow {
  readonly admin: AccessSetting;
  /** Where the key of a check comes from that names none; undefined: it has to. */
  readonly keyOf?: KeyOf | undefined;
  readonly bounds?: Partial<HttpBounds> | undefined;
}

/** What happened since the start. */
export interface HttpCounts {
  readonly open: number;
  readonly accepted: number;
  /** Turned away: there were too many. */
  readonly refused: number;
  /** Let go because they did not read their answers. */
  readonly slow: number;
  /** Answers by status. */
  readonly answered: Readonly<Record<number, number>>;
  readonly feed: FeedCounts;
}

/** One more than the largest status there is. */
const STATUSES = 600;

export const httpSurface = (setting: HttpSetting, now: HttpNow): HttpSurface =>
  new HttpSurface(setting, now);

export class HttpSurface {
  readonly #setting: HttpSetting;
  readonly #held: HeldClock | undefined;
  readonly #feed: Feed;
  readonly #answered = new Float64Array(STATUSES);
  /** Connections, and which of them have begun the short way. */
  readonly #open = new Map<Socket, ShortWay | undefined>();
  /** Of these, who had answers waiting at the last look, and how much had gone out by then. */
  #behind = new Map<Socket, number>();
  #cancelLook = (): void => {};
  readonly #longWay: LongWay;
  /** For whoever comes by loopback, and everybody else. */
  readonly #shortHere = this.#shortWay(true);
  readonly #shortElsewhere = this.#shortWay(false);
  readonly #writer = new ReplyWriter();
  #accepted = 0;
  #refused = 0;
  #slow = 0;
  #bounds = HTTP_BOUNDS;
  #desk: Desk;

  constructor(setting: HttpSetting, now: HttpNow) {
    this.#setting = setting;
    this.#held = 'hold' in setting.clock ? setting.clock : undefined;
    this.#feed = new Feed(setting.gate.shelf, setting.clock);
    this.#longWay = new LongWay({
      answer: (...asked) => this.#answer(...asked),
      replied: ({ status }) => void this.#answered[status]++,
      staysOpen: () => setting.isReady(),
      feeds: (response) => this.#feed.add(response),
    });
    this.#desk = this.#deskFor(now);
  }

  get counts(): HttpCounts {
    const seen = [...this.#answered].flatMap((count, status) =>
      count > 0 ? [[status, count] as const] : [],
    );
    return {
      open: this.#open.size,
      accepted: this.#accepted,
      refused: this.#refused,
      slow: this.#slow,
      answered: Object.fromEntries(seen),
      feed: this.#feed.counts,
    };
  }

  /** What a request is told, without a socket. */
  get desk(): Desk {
    return this.#desk;
  }

  /** From now on by another configuration. */
  change(now: HttpNow): void {
    this.#desk = this.#deskFor(now);
  }

  /** Takes over a connection; `isLoopback` if nobody but this host can have made it. */
  accept(socket: Socket, isLoopback: boolean): void {
    if (this.#open.size >= this.#bounds.connectionsMax) {
      this.#refused++;
      socket.destroy();
      return;
    }
    this.#accepted++;
    if (this.#open.size === 0) this.#lookLater();
    const own = this.#takeOver(socket, isLoopback);
    own.once('close', () => this.#open.delete(own));
  }

  /** The socket to go on with. */
  #takeOver(socket: Socket, isLoopback: boolean): Socket {
    if (!canBeHeardInPlace(socket)) {
      this.#open.set(socket, undefined);
      this.#longWay.take(socket, isLoopback);
      return socket;
    }
    const way = new ShortWay(socket, isLoopback ? this.#shortHere : this.#shortElsewhere);
    this.#open.set(way.socket, way);
    return way.socket;
  }

  /** Answers what was asked, and hangs up. Replies ask to, once `isReady` says no. */
  async drain(withinMs: Millis): Promise<void> {
    this.#feed.close();
    const { clock } = this.#setting;
    const ended = [...this.#open.keys()].map(
      (socket) => new Promise((end) => socket.once('close', end)),
    );
    const cancel = alarm(
      clock,
      clock.now() + withinMs,
      () => {
        for (const socket of this.#open.keys()) socket.destroy();
      },
      true,
    );
    this.#longWay.closeIdle();
    for (const [socket, shortWay] of this.#open) {
      if (socket.bytesRead === 0)
        socket.destroy(); // never asked
      else shortWay?.finish();
    }
    await Promise.all(ended);
    cancel();
  }

  #deskFor({ admin, keyOf, bounds }: HttpNow): Desk {
    this.#bounds = { ...HTTP_BOUNDS, ...bounds };
    this.#feed.listenersMax = this.#bounds.feedMax;
    this.#longWay.bind(this.#bounds);
    return new Desk({ ...this.#setting, admin, keyOf, bounds: this.#bounds, feed: this.#feed });
  }

  #answer(request: Heard, isLoopback: boolean, body: Buffer): Reply | Promise<Reply> {
    this.#held?.hold(); // a check decides and tells of it at one instant
    const reply = this.#desk.answer(request, isLoopback, body);
    this.#held?.letGo();
    return reply;
  }

  #shortWay(isLoopback: boolean): ShortWayTold {
    return {
      answer: (check) => this.#answerHere(check),
      handedOver: (socket) => this.#longWay.take(socket, isLoopback),
      silent: refuseSilent,
      bounds: () => this.#bounds,
    };
  }

  /** The bytes of an answer, if nobody else has a say in it and the connection stays open. */
  #answerHere(check: Heard): string | undefined {
    if (!this.#setting.isReady()) return undefined;
    this.#held?.hold();
    const reply = this.#desk.answerHere(check);
    const now = this.#setting.clock.now();
    this.#held?.letGo();
    if (reply === undefined) return undefined;
    this.#answered[reply.status]++;
    return this.#writer.write(reply, now, idleTimeoutOf(this.#bounds));
  }

  /** Lets go who has answers waiting and has read none since the last look. */
  #look(): void {
    const before = this.#behind;
    this.#behind = new Map();
    for (const socket of this.#open.keys()) {
      if (socket.writableLength === 0) continue;
      const sent = socket.bytesWritten - socket.writableLength;
      if (before.get(socket) !== sent) this.#behind.set(socket, sent);
      else {
        this.#slow++;
        socket.destroy();
      }
    }
    if (this.#open.size > 0) this.#lookLater();
  }

  #lookLater(): void {
    const { clock } = this.#setting;
    this.#cancelLook();
    this.#cancelLook = alarm(clock, clock.now() + this.#bounds.slowMs, () => this.#look(), false);
  }
}
