/**
 * The desk: what an HTTP request asks, and what it is told.
 *
 *     GET  /check?limit=&key=&cost=&hold=1            200, or 429, 503, 403: for programs, and proxies that ask first
 *     POST /batch   POST /settle                      many at once; how a call went
 *     GET  /healthz /readyz                           alive; ready
 *     GET  /inspect …   POST /reload                  behind the counter: `admin-routes.ts`, and who may, `access.ts`
 *
 * It meets no socket, so that a test, or a million random requests, can ask it directly. It never throws
 * and never rejects.
 */

import type { Ask } from '../../router/router.ts';
import type { Route } from '../../router/routes.ts';
import { type AccessSetting, CROSS_SITE, type Guarded, guarded, isCrossSite } from './access.ts';
import { type CounterSetting, counter } from './admin-routes.ts';
import {
  jsonIn,
  keyTooLong,
  MISSING_KEY,
  type Question,
  questionIn,
  questionsOf,
  type Settlement,
  settlementIn,
  settlementOf,
} from './check-request.ts';
import { inBrief, Verdicts } from './decision-response.ts';
import { CHANGE, type Endpoint, open, READ } from './endpoint.ts';
import type { Heard, KeyOf } from './key.ts';
import { Complaint, shown } from './parameters.ts';
import { isReply, json, problem, type Reply, text, unknownLimit } from './reply.ts';

export interface DeskSetting extends CounterSetting {
  readonly admin: AccessSetting;
  /** Where the key of a check comes from that names none; undefined: it has to. */
  readonly keyOf?: KeyOf | undefined;
  readonly bounds: DeskBounds;
  /** False while draining. */
  isReady(): boolean;
  /** Hears of what should not happen. */
  onError?(error: unknown): void;
}

export interface DeskBounds {
  /** Bytes of a key. */
  readonly keyMax: number;
  /** Questions in one request. */
  readonly batchMax: number;
}

export const DESK_BOUNDS: DeskBounds = { keyMax: 1024, batchMax: 1000 };

/** A question that makes sense, and the limits it meets. */
interface Asked {
  readonly question: Question;
  readonly tag: string;
  readonly route: Route;
}

/** Proxies that ask first may send the method they were sent. */
const ANYTHING: readonly string[] = [];

const CHECK = '/check';
const QUESTION_MARK = 63;

export class Desk {
  readonly #setting: DeskSetting;
  readonly #guarded: Guarded;
  readonly #verdicts = new Verdicts();
  readonly #endpoints: ReadonlyMap<string, Endpoint>;

  constructor(setting: DeskSetting) {
    this.#setting = setting;
    this.#guarded = guarded(setting.admin);
    this.#endpoints = this.#map();
  }

  /** What a request is told. */
  answer(request: Heard, isLoopback: boolean, body: Buffer): Reply | Promise<Reply> {
    try {
      const reply = this.#answer(request, isLoopback, body);
      return reply instanceof Promise ? reply.catch((error) => this.#failed(error)) : reply;
    } catch (error) {
      return this.#failed(error);
    }
  }

  /** The same for a check in a URL; undefined, and nothing was taken, if somebody else has a say in it. */
  answerHere(request: Heard): Reply | undefined {
    try {
      const asked = this.#asked(request, CHECK.length + 1);
      if (isReply(asked)) return asked;
      return asked.route.there.length === 0 ? (this.#ask(asked) as Reply) : undefined;
    } catch (error) {
      return this.#failed(error);
    }
  }

  #answer(request: Heard, isLoopback: boolean, body: Buffer): Reply | Promise<Reply> {
    const url = request.url ?? '';
    const isCheck =
      url.startsWith(CHECK) &&
      (url.length === CHECK.length || url.charCodeAt(CHECK.length) === QUESTION_MARK);
    if (isCheck && body.length === 0) return this.#checkUrl(request, CHECK.length + 1);
    return this.#find(request, url, isLoopback, body);
  }

  #find(request: Heard, url: string, isLoopback: boolean, body: Buffer): Reply | Promise<Reply> {
    const pathAt = pathIn(url);
    const mark = url.indexOf('?', pathAt);
    const pathEnd = mark < 0 ? url.length : mark;
    const path = url.slice(pathAt, pathEnd);
    const endpoint = this.#endpoints.get(path);
    if (!endpoint)
      return problem(404, `There is nothing at ${shown(path)}; GET / says what there is.`);
    const { methods, isAdmin, handle } = endpoint;
    const forbidden = isAdmin && this.#guarded(request, isLoopback);
    if (forbidden) return forbidden;
    const { method = '' } = request;
    if (methods !== ANYTHING && !methods.includes(method)) return notAllowed(methods);
    if (methods === CHANGE && isCrossSite(request)) return CROSS_SITE;
    return handle(request, pathEnd + 1, body);
  }

  #map(): ReadonlyMap<string, Endpoint> {
    const own = this.#setting;
    return new Map<string, Endpoint>([
      ['/check', open(ANYTHING, (...asked) => this.#check(...asked))],
      ['/batch', open(CHANGE, (...asked) => this.#batch(...asked))],
      ['/settle', open(CHANGE, (...asked) => this.#settle(...asked))],
      ['/healthz', open(READ, () => text(200, 'ok\n'))],
      ['/readyz', open(READ, () => (own.isReady() ? text(200, 'ready\n') : DRAINING))],
      ...counter(own),
    ]);
  }

  // The questions.

  #checkUrl(request: Heard, queryAt: number): Reply | Promise<Reply> {
    return this.#ask(this.#asked(request, queryAt));
  }

  /** What a URL asks, or what to say to it. */
  #asked(request: Heard, queryAt: number): Asked | Reply {
    const question = questionIn(request.url ?? '', queryAt);
    if (question instanceof Complaint) return problem(400, question.detail);
    return this.#routed(request, question);
  }

  #check(request: Heard, queryAt: number, body: Buffer): Reply | Promise<Reply> {
    if (body.length === 0) return this.#checkUrl(request, queryAt);
    const asked = this.#questions(request, queryAt, body);
    if (isReply(asked)) return asked;
    return Array.isArray(asked)
      ? this.#askAll(request, asked)
      : this.#ask(this.#routed(request, asked as Question));
  }

  #batch(request: Heard, queryAt: number, body: Buffer): Reply | Promise<Reply> {
    const asked = this.#questions(request, queryAt, body);
    if (isReply(asked)) return asked;
    if (!Array.isArray(asked)) return problem(400, NO_LIST.detail);
    return this.#askAll(request, asked);
  }

  /** What a body asks, or what to say to it. */
  #questions(
    request: Heard,
    queryAt: number,
    body: Buffer,
  ): Question | readonly Question[] | Reply {
    const { batchMax } = this.#setting.bounds;
    return this.#read(request, queryAt, body, {
      form: (form) => questionIn(form, 0),
      json: (value) => questionsOf(value, batchMax),
    });
  }

  /** Reads a body as its type says; a body and a query at once would leave open which of them counts. */
  #read<T extends object>(
    { headers, url = '' }: Heard,
    queryAt: number,
    body: Buffer,
    as: { form(form: string): T | Complaint; json(value: unknown): T | Complaint },
  ): T | Reply {
    if (queryAt < url.length) return problem(400, 'Ask in the URL or in the body, not in both.');
    const [type] = String(headers['content-type'] ?? '').split(';', 1);
    const kind = type.trim().toLowerCase();
    if (kind === 'application/x-www-form-urlencoded') {
      return orProblem(as.form(body.toString('latin1')));
    }
    if (kind !== 'application/json') return WRONG_TYPE;
    const parsed = jsonIn(body);
    return orProblem(parsed instanceof Complaint ? parsed : as.json(parsed.value));
  }

  /** Whose question it is and which limits it meets, before anything is taken. */
  #routed(request: Heard, question: Question): Asked | Reply {
    const tag = this.#tagOf(request, question);
    if (tag instanceof Complaint) return problem(400, tag.detail);
    const route = this.#setting.gate.route(tag, question.limit);
    return route ? { question, tag, route } : unknownLimit(question.limit ?? '');
  }

  /** A promise only if somebody else has a say in it. */
  #ask(asked: Asked | Reply): Reply | Promise<Reply> {
    if (isReply(asked)) return asked;
    const { question, tag, route } = asked;
    const { limit, cost, hold } = question;
    const answer = this.#setting.gate.askAlong(route, { limit, tag, cost, hold });
    return answer instanceof Promise
      ? this.#verdicts.replyLate(question, tag, answer, route)
      : this.#verdicts.reply(question, tag, answer, route);
  }

  #tagOf(request: Heard, { tag }: Question): string | Complaint {
    const { keyMax } = this.#setting.bounds;
    const found = tag ?? this.#setting.keyOf?.(request);
    if (found === undefined) return MISSING_KEY;
    return found.length > keyMax ? keyTooLong(keyMax, found) : found;
  }

  /** Nothing is asked before all questions are known to make sense. */
  async #askAll(request: Heard, questions: readonly Question[]): Promise<Reply> {
    const { gate } = this.#setting;
    const asked: { readonly route: Route; readonly ask: Ask }[] = [];
    for (let n = 0; n < questions.length; n++) {
      const { limit, cost, hold } = questions[n];
      const tag = this.#tagOf(request, questions[n]);
      if (tag instanceof Complaint) return problem(400, tag.within(`[${n}]`).detail);
      const route = gate.route(tag, limit);
      if (!route) return unknownLimit(limit ?? '', `[${n}]: `);
      asked.push({ route, ask: { limit, tag, cost, hold } });
    }
    const answers = asked.map(({ route, ask }) => gate.askAlong(route, ask));
    return json(200, (await Promise.all(answers)).map(inBrief));
  }

  #settle(request: Heard, queryAt: number, body: Buffer): Reply {
    const { url = '' } = request;
    const asked: Settlement | Reply =
      body.length === 0
        ? orProblem(settlementIn(url, queryAt))
        : this.#read(request, queryAt, body, {
            form: (form) => settlementIn(form, 0),
            json: settlementOf,
          });
    if (isReply(asked)) return asked;
    const isSettled = this.#setting.gate.settle(asked.permit, asked.result);
    return isSettled
      ? json(200, { settled: true })
      : problem(404, `Nobody holds permit ${shown(asked.permit)} any more.`);
  }

  #failed(error: unknown): Reply {
    this.#setting.onError?.(error);
    return problem(500, 'Something went wrong here; the log of the daemon says what.');
  }
}

const DRAINING = problem(503, 'Draining: about to stop.', 'Retry-After', '1');

const WRONG_TYPE = problem(
  415,
  'Send application/json or application/x-www-form-urlencoded.',
  'Accept-Post',
  'application/json, application/x-www-form-urlencoded',
);

const NO_LIST = new Complaint('body', 'a list of questions', 'one');

const orProblem = <T extends object>(read: T | Complaint): T | Reply =>
  read instanceof Complaint ? problem(400, read.detail) : read;

const notAllowed = (methods: readonly string[]): Reply =>
  problem(405, `This takes ${methods.join(' or ')}.`, 'Allow', methods.join(', '));

/** Where the path of a URL begins: some clients, told of a proxy, send the host along. */
function pathIn(url: string): number {
  if (url.startsWith('/')) return 0;
  const host = /^https?:\/\/[^/?]*/i.exec(url);
  return host ? host[0].length : 0;
}
