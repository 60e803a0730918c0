/**
 * Access logs of nginx and Apache, combined or common. What follows the fields below is ignored.
 *
 *     192.0.2.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.1" 200 2326 "https://example.org/" "curl/8"
 *     ip          user  time                          method path       status bytes  referer                agent
 *
 * The scan reads each byte once, up to the last field that is used, and allocates nothing. A field that is `-` is absent.
 */

import { suggestName } from '../../core/suggestion.ts';
import { CommandError } from '../framework/command.ts';
import { type Field, type LineFormat, RangeFormat } from './line-format.ts';
import { CLF_BYTES, TimeReader } from './times.ts';

const SPACE = 32;
const QUOTE = 34;
const DASH = 45;
const OPEN = 91;
const BACKSLASH = 92;
const CLOSE = 93;
const QUESTION = 63;

/** In the order of the line. */
const FIELDS = [
  'ip',
  'user',
  'request',
  'method',
  'path',
  'url',
  'protocol',
  'status',
  'bytes',
  'referer',
  'agent',
];
const [IP, USER, REQUEST, METHOD, PATH, URL, PROTOCOL, STATUS, BYTES, REFERER, AGENT] =
  FIELDS.keys();

export class CombinedFormat extends RangeFormat implements LineFormat {
  readonly name = 'combined';
  problem = '';
  readonly #time = new TimeReader();
  /** Fields that no key and no condition uses are not searched for. */
  #needsRequest = false;
  #needsRest = false;

  constructor() {
    super(FIELDS.length);
  }

  get at(): number {
    return this.#time.at;
  }

  get zoneMinutes(): number {
    return this.#time.zoneMinutes;
  }

  read(bytes: Buffer, from: number, to: number): boolean {
    this.bytes = bytes;
    const { starts, ends } = this;
    let n = from;
    while (n < to && bytes[n] !== SPACE) n++;
    this.#set(IP, from, n);
    const ident = ++n;
    while (n < to && bytes[n] !== SPACE) n++;
    if (ident === from + 1 || n === ident || n >= to)
      return this.#fail('an address, an identity and a user');
    const user = ++n;
    while (n < to && !(bytes[n] === OPEN && bytes[n - 1] === SPACE)) n++; // a user name may have spaces
    this.#set(USER, user, n - 1);
    const time = n + 1;
    n = time + CLF_BYTES;
    if (n >= to || bytes[n] !== CLOSE || !this.#time.readClf(bytes, time))
      return this.#fail('a time such as [10/Oct/2000:13:55:36 -0700]');
    n += 2;
    if (bytes[n] !== QUOTE || n >= to) return this.#fail('a request in quotes after the time');
    if (!this.#needsRequest && !this.#needsRest) return true;
    n = this.#quoted(REQUEST, n, to);
    if (n < 0) return this.#fail('a quote at the end of the request');
    if (this.#needsRequest) this.#splitRequest();
    if (!this.#needsRest) return true;
    n = this.#word(STATUS, n + 1, to);
    n = this.#word(BYTES, n + 1, to);
    starts[REFERER] = starts[AGENT] = 0;
    ends[REFERER] = ends[AGENT] = -1;
    if (bytes[n + 1] !== QUOTE || n + 1 >= to) return true; // the common format ends here
    n = this.#quoted(REFERER, n + 1, to);
    if (n >= 0 && n + 1 < to && bytes[n + 1] === QUOTE) this.#quoted(AGENT, n + 1, to);
    return true;
  }

  field(name: string): Field {
    const range = FIELDS.indexOf(name);
    if (range >= STATUS) this.#needsRest = true;
    else if (range >= REQUEST) this.#needsRequest = true;
    if (range >= 0) return { range, text: () => this.textOf(range) };
    const hint = suggestName(name, FIELDS);
    throw new CommandError(
      `expected a field of an access log, one of ${FIELDS.join(', ')}, got "${name}"${hint ? `; ${hint}` : ''}`,
    );
  }

  fieldNames(): readonly string[] {
    return FIELDS.filter((_, range) => this.textOf(range) !== undefined);
  }

  #fail(expected: string): false {
    this.problem = `expected ${expected}`;
    return false;
  }

  #set(range: number, from: number, to: number): void {
    const isAbsent = to <= from || (to === from + 1 && this.bytes[from] === DASH);
    this.starts[range] = from;
    this.ends[range] = isAbsent ? from - 1 : to;
  }

  /** A field in quotes that begins at `open`; returns the byte after it, -1 if it does not end. */
  #quoted(range: number, open: number, to: number): number {
    const { bytes } = this;
    let n = open + 1;
    while (n < to && bytes[n] !== QUOTE) n += bytes[n] === BACKSLASH ? 2 : 1;
    if (n >= to) return -1;
    this.#set(range, open + 1, n);
    return n + 1;
  }

  /** A field up to the next space; returns where it ends. */
  #word(range: number, from: number, to: number): number {
    const { bytes } = this;
    let n = from;
    while (n < to && bytes[n] !== SPACE) n++;
    this.#set(range, from, n);
    return n;
  }

  /** `GET /a?b=1 HTTP/1.1`. What is no request, such as the bytes of a TLS handshake, is a path. */
  #splitRequest(): void {
    const { bytes, starts, ends } = this;
    const [from, to] = [starts[REQUEST], ends[REQUEST]];
    let first = from;
    while (first < to && bytes[first] !== SPACE) first++;
    let last = to;
    while (last > first && bytes[last - 1] !== SPACE) last--;
    const isRequest = last > first + 1;
    this.#set(METHOD, from, isRequest ? first : from);
    this.#set(PROTOCOL, isRequest ? last : to, to);
    const [start, end] = isRequest ? [first + 1, last - 1] : [from, to];
    this.#set(URL, start, end);
    let query = start;
    while (query < end && bytes[query] !== QUESTION) query++;
    this.#set(PATH, start, query);
  }
}
