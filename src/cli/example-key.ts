/**
 * A key for the commands that `sluice serve` prints: one that a limit of the configuration counts.
 *
 * Candidates are made of the patterns of the limits and tried. A regular expression is tried with a few usual keys.
 */

import type { LimitConfig } from '../daemon/config/limits.ts';
import type { Config } from '../daemon/config/read.ts';
import type { Pattern } from '../daemon/keys/pattern.ts';

const USER = 'alice';
/** An address for documentation. */
const ADDRESS = '192.0.2.1';

const USUAL_KEYS = [USER, `user:${USER}`, `ip:${ADDRESS}`, ADDRESS, 'user:42', 'user-42', '42'];

/** A configuration may have many thousands. */
const MAX_TRIED_PATTERNS = 100;

/** A key that needs no quoting in a shell, in a URL and in a command of Redis. */
const PLAIN_KEY = /^\w[\w:.@-]*$/;

type Lists = Pick<Config, 'allow' | 'deny'>;

type Limits = Lists &
  Pick<Config, 'unmatched'> & {
    readonly limits: readonly (Lists & Pick<LimitConfig, 'match' | 'always'>)[];
  };

/** `alice` if a limit counts it, or if no key is found. */
export function exampleKey({ limits, unmatched, ...lists }: Limits): string {
  // With `unmatched: deny`, a limit with `always` admits no key by itself.
  const admitting = limits.filter(({ always }) => unmatched === 'allow' || !always);
  const tried = [...firstPatterns(admitting)];
  const isCounted = (key: string): boolean =>
    PLAIN_KEY.test(key) &&
    !isListed(lists, key) &&
    tried.some(({ limit, pattern }) => pattern.matches(key) && !isListed(limit, key));
  const candidates = tried.map(({ pattern }) => candidateOf(pattern));
  return [USER, ...candidates, ...USUAL_KEYS].find(isCounted) ?? USER;
}

function* firstPatterns(limits: Limits['limits']) {
  let count = 0;
  for (const limit of limits)
    for (const pattern of limit.match) {
      if (count++ === MAX_TRIED_PATTERNS) return;
      yield { limit, pattern };
    }
}

/** A list decides before a limit counts. */
const isListed = ({ allow, deny }: Lists, key: string): boolean =>
  allow.best(key) >= 0 || deny.best(key) >= 0;

function candidateOf({ written: { exact, prefix, glob, cidr } }: Pattern): string {
  if (exact !== undefined) return exact;
  if (cidr !== undefined) return cidr.split('/')[0];
  const text = glob ?? (prefix === undefined ? '' : `${prefix}*`);
  return text
    .replace(/(\bip\W?)\*/, `$1${ADDRESS}`)
    .replace(/\?|(?<=[\d.])\*/g, '1')
    .replaceAll('*', USER);
}
