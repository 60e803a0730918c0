import { UNLIMITED } from '../core/decision.ts';
import { toPrintableLine } from '../core/printable.ts';
import { formatTime } from './chart/format.ts';
import { alignColumns } from './chart/table.ts';
import { type Cause, causeText } from './top-report.ts';

/** `GET /explain`, `/inspect` and `/denials` of one key. A time of null is never. */
export interface KeyPages {
  readonly explained: {
    readonly summary: string;
    readonly limits: readonly {
      readonly name: string;
      readonly isApplied: boolean;
      readonly shadow?: true;
      readonly rule: unknown;
      readonly reason: string;
    }[];
  };
  readonly inspected: {
    readonly verdict?: string;
    readonly reason?: string;
    readonly limits: readonly LimitState[];
  };
  readonly denied: {
    readonly lastHours: readonly (Cause & { readonly denied: number; readonly error?: number })[];
    readonly denials: readonly Denial[];
  };
}

interface LimitState {
  readonly name: string;
  readonly isAvailable?: false;
  readonly remaining?: number;
  /** The learnt limit of a limit that learns. */
  readonly limit?: number;
  readonly opensInMs?: number | null;
  readonly by?: string;
  readonly locks?: number;
  readonly lockedMs?: number;
}

interface Denial extends Cause {
  readonly firstAt: number;
  readonly lastAt: number;
  readonly denied: number;
  readonly rule?: string;
  readonly cost: number;
  readonly remaining?: number;
  readonly retryAfterMs: number | null;
  readonly lockedUntil?: number;
}

/** Denials that are listed; the JSON has all of them. */
const MAX_LISTED = 20;

export function whyLines(key: string, since: string, pages: KeyPages): string[] {
  const { explained, denied } = pages;
  const applied = explained.limits.filter(({ isApplied }) => isApplied);
  return [
    `${toPrintableLine(JSON.stringify(key))}: ${stateNow(pages)}`,
    `limits: ${explained.summary}`,
    ...applied.flatMap(({ name, rule, reason }) => [
      `  ${name}: ${reason}`,
      `      ${JSON.stringify(rule)}`,
      `      ${stateOf(pages.inspected.limits.find((state) => state.name === name))}`,
    ]),
    ...deniedLines(denied, since),
    ...adviceOf(pages),
  ].map(toPrintableLine);
}

function stateNow({ explained, inspected }: KeyPages): string {
  if (inspected.verdict !== undefined) return explained.summary;
  const refusing = refusingLimits(explained, inspected);
  if (refusing.length === 0) return 'a call would be allowed now';
  const causeOf = ({ by, name, lockedMs }: LimitState): string =>
    `${by ?? name}${lockedMs === undefined ? '' : ' (locked)'}`;
  const unavailable = refusing.filter(({ isAvailable }) => isAvailable === false);
  if (unavailable.length === refusing.length)
    return `\`onUnavailable\` decides now: the backend of ${unavailable.map(({ name }) => name).join(', ')} is unavailable`;
  const exhausted = refusing.filter(({ isAvailable }) => isAvailable !== false);
  return `denied now by ${exhausted.map(causeOf).join(', ')}`;
}

/** The limits that refuse a call of cost 1 now, shadow limits left out. */
function refusingLimits(
  { limits }: KeyPages['explained'],
  inspected: KeyPages['inspected'],
): LimitState[] {
  const shadows = new Set(limits.filter(({ shadow }) => shadow).map(({ name }) => name));
  return inspected.limits.filter((state) => state.opensInMs !== 0 && !shadows.has(state.name));
}

function stateOf(state: LimitState | undefined): string {
  if (!state || state.isAvailable === false) return 'its backend is unavailable';
  if (state.lockedMs !== undefined)
    return `locked by a lock-out (lock ${state.locks}), opens ${whenText(state.lockedMs)}`;
  if (state.limit === UNLIMITED) return 'not limited: no reply was busy yet, or not lately';
  const left = `${Math.floor(Math.max(0, state.remaining ?? 0))} left`;
  return state.opensInMs === 0 ? left : `${left}, a call fits ${whenText(state.opensInMs)}`;
}

function whenText(ms: number | null | undefined): string {
  if (ms === undefined || ms === 0) return 'when a call in flight settles';
  return ms === null ? 'never' : `in ${formatTime(ms)}`;
}

function deniedLines({ denials, lastHours }: KeyPages['denied'], since: string): string[] {
  const totals = lastHours.map(
    (each) =>
      `  ${causeText(each)}: ${each.denied}${each.error ? ` ± ${each.error}` : ''} in the last 1 to 2 h`,
  );
  if (denials.length === 0)
    return [
      `denials, last ${since}: none recorded${totals.length > 0 ? '' : ' by this daemon'}`,
      ...totals,
    ];
  const rows = denials
    .slice(0, MAX_LISTED)
    .map((denial) => [
      new Date(denial.firstAt).toISOString().slice(0, 19).replace('T', ' '),
      causeText(denial),
      denial.rule ?? '-',
      String(denial.denied),
      String(denial.cost),
      denial.remaining === undefined ? '-' : String(Math.floor(Math.max(0, denial.remaining))),
      whenText(denial.retryAfterMs),
    ]);
  const heading = ['first (UTC)', 'by', 'rule', 'denied', 'cost', 'left', 'fits'];
  const hidden = denials.length - rows.length;
  return [
    `denials, last ${since}, one line per rule and 10 s:`,
    ...alignColumns([heading, ...rows], '  ', 3).map((line) => `  ${line}`),
    ...(hidden > 0 ? [`  and ${hidden} more: --json`] : []),
    ...totals,
  ];
}

/** Advice by the reason of a denial. */
const ADVICE: Readonly<Record<string, string>> = {
  'deny-list': 'remove the key from the deny list, and reload',
  unmatched: 'add a limit that matches the key, or set `unmatched: allow`',
  banned: 'the ban ends by itself, or an operator removes it',
  unavailable:
    'the backend of the limit did not reply: see the log, and `onUnavailable` of the limit',
  overload: 'the daemon was overloaded, and the limit fails closed: see `overload`, or add daemons',
  'queue-full': 'too many calls waited: raise `bounds.waiting`, or let clients wait for less time',
  'further-limits':
    'more than 100 limits deny calls, and these share one record: see what each limit has left above',
  'permits-full': 'clients hold too many permits: settle them, or lower `permitTimeout`',
  locked: 'the lock ends by itself; `sluice reset` ends it now, if the failures were not an attack',
  cooldown: 'the key is in a Retry-After cool-down that a client reported; it ends by itself',
};

function adviceOf({ explained, inspected, denied }: KeyPages): string[] {
  const advice = new Set<string>();
  if (inspected.verdict === 'deny') advice.add(ADVICE[inspected.reason ?? ''] ?? explained.summary);
  for (const state of refusingLimits(explained, inspected))
    advice.add(adviceForLimit(state.name, reasonOf(state), state.opensInMs));
  for (const { limit = '', command, shadow, retryAfterMs, ...denial } of denied.denials) {
    const reason = denial.lockedUntil === undefined ? denial.reason : 'locked';
    if (shadow) advice.add(`${limit}: shadow mode, nothing was refused`);
    else if (command) advice.add(`${command}: the limit comes with the command; change it there`);
    else advice.add(adviceForLimit(limit, reason, retryAfterMs));
  }
  if (advice.size === 0) return [];
  return ['what to do:', ...[...advice].map((text) => `  ${text}`)];
}

/** Why a limit refuses a call now, if it is not simply exhausted. */
function reasonOf({ isAvailable, by, lockedMs }: LimitState): string | undefined {
  if (isAvailable === false) return 'unavailable';
  if (lockedMs !== undefined) return 'locked';
  return by?.endsWith('cooldown') ? 'cooldown' : undefined;
}

function adviceForLimit(
  limit: string,
  reason: string | undefined,
  retryAfterMs: number | null | undefined,
): string {
  const known = reason === undefined ? undefined : (ADVICE[reason] ?? reason);
  if (known !== undefined) return limit === '' ? known : `${limit}: ${known}`;
  if (retryAfterMs === null) return `${limit}: the cost never fits; lower it, or raise the burst`;
  if (retryAfterMs === undefined || retryAfterMs === 0)
    return `${limit}: settle calls in flight sooner, or raise the limit`;
  return `${limit}: call less often, raise its rate, or give the key an override`;
}
