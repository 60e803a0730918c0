import { tryParseJson } from '../core/json.ts';
import { toPrintableLine } from '../core/printable.ts';
import { alignColumns, cut } from './chart/table.ts';
import {
  ADMIN_FLAGS,
  ADMIN_FLAGS_HELP,
  type AdminFlags,
  fetchPage,
  requestAdmin,
} from './framework/admin-client.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  onlyPositional,
  parseFlagValue,
  readArgs,
  readFlags,
  SWITCH,
  TEXT,
  type Terminal,
} from './framework/command.ts';

interface ControlView {
  readonly kind: string;
  readonly key: string;
  /** True for one key that would read as a pattern. */
  readonly exact?: boolean;
  /** The effect of a ban of a pattern. */
  readonly pattern?: string;
  readonly limit?: string;
  readonly rule?: unknown;
  readonly until: string;
  readonly note?: string;
}

const TOKEN_HELP = 'The admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.';

interface ChangeView {
  readonly warnings?: readonly string[];
  readonly unsaved?: string;
  readonly unshared?: string;
}

/** Warns if the change has no effect, a crash of the daemon would undo it, or its peers do not get it. */
async function change(
  path: string,
  flags: AdminFlags,
  fields: Fields,
  terminal: Terminal,
): Promise<unknown> {
  const { exact, ...given } = fields;
  const named = exact ? { ...given, key: { exact: given.key } } : given;
  const result = await requestAdmin('POST', path, flags, undefined, named).catch(inFlags);
  const { warnings = [], unsaved, unshared } = result as ChangeView;
  for (const warning of warnings) terminal.error(toPrintableLine(`warning: ${warning}`));
  if (unsaved !== undefined) terminal.error(toPrintableLine(`warning: not saved: ${unsaved}`));
  if (unshared !== undefined)
    terminal.error(toPrintableLine(`warning: not shared with peers: ${unshared}`));
  return result;
}

/** Errors of the daemon, with the flag in place of the JSON. */
function inFlags(error: unknown): never {
  if (!(error instanceof CommandError)) throw error;
  throw new CommandError(error.message.replace('write { exact: … }', 'use --exact'));
}

const EXACT_HELP =
  '--exact        KEY is taken literally, also if it reads like a pattern or a network';

type Fields = Readonly<Record<string, unknown>>;

/** Exactly these words. @throws {CommandError} */
function words(positionals: readonly string[], usage: string, count: number): readonly string[] {
  if (positionals.length === count) return positionals;
  throw new CommandError(`expected ${usage}; see --help`);
}

const keyText = ({ key, exact }: ControlView): string => (exact ? `{exact: ${key}}` : key);

function printControl(view: ControlView, terminal: Terminal): void {
  const { kind, limit, until, note, pattern } = view;
  const where = limit === undefined ? '' : ` in ${limit}`;
  const why = note === undefined ? '' : ` (${note})`;
  terminal.print(toPrintableLine(`${kind} ${keyText(view)}${where} until ${until}${why}`));
  if (pattern !== undefined) terminal.print(toPrintableLine(`pattern: ${pattern}`));
}

export const ban: Command = {
  help: `usage: sluice ban KEY DURATION [options]

Denies a key at once in all limits of a running daemon, until the time is over. KEY may be a pattern, as in
a deny list. The ban outlives a restart and a crash if the daemon has a snapshot file, and peers learn of it. The
command returns when the ban is on disk, and warns if it is not.

options:
  --note TEXT    who banned it, or why: shown by \`sluice controls\`
  ${EXACT_HELP}
${ADMIN_FLAGS_HELP}

${TOKEN_HELP}

example:
  sluice ban ip:192.0.2.7 1h --note 'scraper, ticket 4711'`,
  async run(args, terminal) {
    const specs = { ...ADMIN_FLAGS, note: TEXT, exact: SWITCH };
    const { values: flags, positionals } = readArgs(args, specs);
    const [key, duration] = words(positionals, 'a key and a duration', 2);
    const { note, exact } = flags;
    const fields = { key, exact, for: duration, ...(note !== undefined && { note }) };
    printControl((await change('/ban', flags, fields, terminal)) as ControlView, terminal);
    return EXIT_OK;
  },
};

export const unban: Command = {
  help: `usage: sluice unban KEY [options]

Ends the ban of a key, or of a pattern as it was written.

options:
  ${EXACT_HELP}
${ADMIN_FLAGS_HELP}

${TOKEN_HELP}

example:
  sluice unban ip:192.0.2.7`,
  async run(args, terminal) {
    const { values: flags, positionals } = readArgs(args, { ...ADMIN_FLAGS, exact: SWITCH });
    const key = onlyPositional(positionals, 'key');
    await change('/unban', flags, { key, exact: flags.exact }, terminal);
    terminal.print(toPrintableLine(`${key} is no longer banned`));
    return EXIT_OK;
  },
};

export const override: Command = {
  help: `usage: sluice override KEY RATE DURATION [options]
       sluice override KEY --remove [options]

Gives a key another rate in one limit, until the time is over: 100/s for bucket, window and spacing, a number
of calls for concurrency. RATE may also be a whole rule as JSON. What the key has consumed stays consumed. KEY is an exact key, not a pattern.

options:
  --limit NAME   the limit; default: the most specific one that matches the key
  --burst N      burst of a bucket; default: the count in RATE
  --note TEXT    who set it, or why: shown by \`sluice controls\`
  --remove       ends the override
  ${EXACT_HELP}
${ADMIN_FLAGS_HELP}

${TOKEN_HELP}

examples:
  sluice override user:42 100/s 1d --burst 500
  sluice override user:42 '{"window": {"limit": 5, "per": "1m"}}' 1d`,
  async run(args, terminal) {
    const texts = { limit: TEXT, burst: TEXT, note: TEXT };
    const specs = { ...ADMIN_FLAGS, ...texts, remove: SWITCH, exact: SWITCH };
    const { values: flags, positionals } = readArgs(args, specs);
    const { limit, burst, note, exact } = flags;
    const named = { exact, ...(limit !== undefined && { limit }) };
    if (flags.remove) {
      const key = onlyPositional(positionals, 'key');
      await change('/remove-override', flags, { key, ...named }, terminal);
      terminal.print(toPrintableLine(`the override of ${key} is removed`));
      return EXIT_OK;
    }
    const [key, rate, duration] = words(positionals, 'a key, a rate and a duration', 3);
    const options = {
      ...(burst !== undefined && { burst: parseFlagValue(burst) }),
      ...(note !== undefined && { note }),
    };
    const fields = { key, ...rateOrRule(rate), for: duration, ...named, ...options };
    printControl((await change('/override', flags, fields, terminal)) as ControlView, terminal);
    return EXIT_OK;
  },
};

function rateOrRule(text: string): Fields {
  if (!text.startsWith('{')) return { rate: parseFlagValue(text) };
  const rule = tryParseJson(text);
  if (rule === undefined) throw new CommandError(`expected a rate, or a rule as JSON, got ${text}`);
  return { rule };
}

export const reset: Command = {
  help: `usage: sluice reset KEY [options]

Forgets what a key has consumed, in one limit or in all that apply to it and count each key by itself: it starts
anew. KEY is an exact key, not a pattern. With a limit in Redis or etcd, the key is reset there. A concurrency limit in Redis and a limit that groups divide there
cannot be reset.

options:
  --limit NAME   one limit; default: all that apply to the key
  ${EXACT_HELP}
${ADMIN_FLAGS_HELP}

${TOKEN_HELP}

example:
  sluice reset user:42 --limit logins`,
  async run(args, terminal) {
    const specs = { ...ADMIN_FLAGS, limit: TEXT, exact: SWITCH };
    const { values: flags, positionals } = readArgs(args, specs);
    const key = onlyPositional(positionals, 'key');
    const { limit, exact } = flags;
    const fields = { key, exact, ...(limit !== undefined && { limit }) };
    const result = await change('/reset', flags, fields, terminal);
    const {
      reset: done = [],
      failed = [],
      shared = [],
    } = result as Partial<Record<'reset' | 'failed' | 'shared', readonly string[]>>;
    const where = done.length > 0 ? `is reset in ${done.join(', ')}` : 'is in no limit';
    const not = failed.length > 0 ? `; not in ${failed.join(', ')}: see the log` : '';
    const other = shared.length > 0 ? `; not in ${shared.join(', ')}: one count for all keys` : '';
    terminal.print(toPrintableLine(`${key} ${where}${not}${other}`));
    return done.length > 0 && failed.length === 0 ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

export const controls: Command = {
  help: `usage: sluice controls [options]

Lists what \`sluice ban\` and \`sluice override\` set, until when, and the notes.

options:
${ADMIN_FLAGS_HELP}
  --json         as JSON, in full: the table cuts keys, rules and notes of more than 60 characters

${TOKEN_HELP}

example:
  sluice controls --at 127.0.0.1:7612`,
  async run(args, terminal) {
    const flags = readFlags(args, { ...ADMIN_FLAGS, json: SWITCH });
    const page = (await fetchPage('/controls', flags)) as { readonly controls: ControlView[] };
    if (flags.json) terminal.print(JSON.stringify(page, undefined, 2));
    else if (page.controls.length === 0) terminal.print('no bans and no overrides');
    else for (const line of controlLines(page.controls)) terminal.print(line);
    return EXIT_OK;
  },
};

/** Longer keys, rules and notes are cut; JSON has all of them. */
const MAX_CELL_COLUMNS = 60;

/** Bans and overrides as a table, without control characters. */
export function controlLines(
  views: readonly ControlView[],
  maxColumns = MAX_CELL_COLUMNS,
): string[] {
  const rows = views.map((view) => {
    const { kind, limit = '', rule, until, note = '' } = view;
    const ruleText = rule === undefined ? '' : JSON.stringify(rule);
    return [kind, keyText(view), limit, ruleText, until, note].map((cell) =>
      cut(toPrintableLine(cell), maxColumns),
    );
  });
  return alignColumns([['kind', 'key', 'limit', 'rule', 'until', 'note'], ...rows], '  ', 6);
}
