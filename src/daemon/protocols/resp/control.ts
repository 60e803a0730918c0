/**
 *     AUTH admin <admin.token>                     required first, or with HELLO; another AUTH or RESET ends it
 *     SLUICE.BAN key seconds [note [EXACT]]        SLUICE.UNBAN key [EXACT]
 *     SLUICE.OVERRIDE key rate seconds [limit] [BURST n] [NOTE text] [EXACT]
 *     SLUICE.REMOVEOVERRIDE key [limit] [EXACT]    SLUICE.RESET key [limit] [EXACT]
 *     SLUICE.CONTROLS
 *
 * The password of the port is known to every application that checks limits, so it does not allow these commands.
 */

import { ConfigError, errorMessageOf } from '../../../core/errors.ts';
import { tryParseJson } from '../../../core/json.ts';
import { toPrintableLine } from '../../../core/printable.ts';
import { type ControlRecord, keyFieldOf, patternNoteOf } from '../../control/control-record.ts';
import type { Controls } from '../../control/controls.ts';
import { toKeyText } from '../../keys/binary-key.ts';
import {
  type CommandReply,
  type Invocation,
  isOperator,
  NOT_AN_INTEGER,
  type RespCommand,
  SYNTAX,
  type WriteReply,
} from './command.ts';

const NOT_ALLOWED =
  'NOPERM this command is for operators: AUTH admin <admin.token of the configuration>';

type Act = (call: Invocation, controls: Controls, text: (n: number) => string) => CommandReply;

/** Refuses other clients, and replies with an error to invalid arguments. */
const guarded =
  (act: Act) =>
  (call: Invocation): CommandReply => {
    const { args, reply, context } = call;
    if (!context.controls || !isOperator(call)) return reply.error(NOT_ALLOWED);
    try {
      return act(call, context.controls, (n) => toKeyText(args.text(n)));
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      return reply.error(problemText(error));
    }
  };

const problemText = (error: unknown): string =>
  `ERR ${errorMessageOf(error).replace('write { exact: … }', 'add EXACT')}`;

const seconds = ({ args }: Invocation, n: number): number => args.integer(n) * 1000;

type KeyField = ReturnType<typeof keyFieldOf> | { readonly exact: string };

/** The key is bytes, UTF-8 or not. `isExact`: it is no pattern. */
function keyField({ args }: Invocation, isExact: boolean): KeyField {
  const field = keyFieldOf(args.text(1));
  return isExact && typeof field === 'string' ? { exact: field } : field;
}

/** The key, with EXACT or nothing as argument `exactAt`. @throws {ConfigError} */
function keyOf(call: Invocation, exactAt: number): KeyField {
  const { args } = call;
  const word = args.count > exactAt ? toKeyText(args.text(exactAt)) : undefined;
  if (word !== undefined && word.toUpperCase() !== EXACT)
    throw new ConfigError(`argument ${exactAt}`, 'EXACT, or left out', word);
  return keyField(call, word !== undefined);
}

const EXACT = 'EXACT';

/** The fields that a keyword names; each has a value. */
const FIELDS: Readonly<Record<string, string>> = { LIMIT: 'limit', BURST: 'burst', NOTE: 'note' };

/** Reads the key and `[limit] [LIMIT name] [BURST n] [NOTE text] [EXACT]`, the keywords in any order; undefined: a syntax error. */
function fieldsOf(call: Invocation, from: number, keywords: readonly string[]) {
  const { args } = call;
  const fields: Record<string, string | number> = {};
  let isExact = false;
  for (let n = from; n < args.count; n++) {
    const word = toKeyText(args.text(n));
    const keyword = word.toUpperCase();
    const name = keywords.includes(keyword) ? FIELDS[keyword] : undefined;
    if (keyword === EXACT && !isExact) isExact = true;
    else if (name !== undefined && !Object.hasOwn(fields, name) && n + 1 < args.count)
      fields[name] = toKeyText(args.text(++n));
    else if (n === from && name === undefined) fields.limit = word;
    else return undefined;
  }
  if (fields.burst !== undefined && DECIMAL.test(String(fields.burst)))
    fields.burst = Number(fields.burst);
  return { key: keyField(call, isExact), ...fields };
}

const DECIMAL = /^\d{1,15}(?:\.\d{1,15})?$/;

/** A rate such as 100/s, or a rule as JSON. @throws {ConfigError} */
function rateOrRule(text: string): { readonly rate: string } | { readonly rule: unknown } {
  if (!text.startsWith('{')) return { rate: text };
  const rule = tryParseJson(text);
  if (rule === undefined) throw new ConfigError('rule', 'JSON', text);
  return { rule };
}

/**
 * Replies when the change is on disk; an error if that fails, or if peers do not get it. Without a snapshot file there is
 * nothing to wait for.
 */
const whenSaved = async (
  controls: Controls,
  write: WriteReply,
  unshared?: string,
): Promise<WriteReply> => {
  const result = await controls.saved();
  if (!result.isSaved && result.hasFile)
    return (writer) => writer.error(`NOTSAVED in effect, but a crash loses it: ${result.reason}`);
  if (unshared === undefined) return write;
  return (writer) => writer.error(`NOTSHARED in effect here, not on peers: ${unshared}`);
};

const whenSet = (
  controls: Controls,
  record: ControlRecord,
  warnings: readonly string[] = [],
): Promise<WriteReply> => {
  const text = toPrintableLine(['OK', ...warnings].join('; '));
  return whenSaved(controls, (writer) => writer.simple(text), controls.sharingProblemOf(record));
};

const ban: Act = (call, controls, text) => {
  const { args, reply } = call;
  const forMs = seconds(call, 2);
  if (Number.isNaN(forMs)) return reply.error(NOT_AN_INTEGER);
  const note = args.count > 3 ? { note: text(3) } : {};
  return whenSet(controls, controls.ban({ key: keyOf(call, 4), for: forMs, ...note }));
};

const override: Act = (call, controls, text) => {
  const { reply } = call;
  const forMs = seconds(call, 3);
  if (Number.isNaN(forMs)) return reply.error(NOT_AN_INTEGER);
  const fields = fieldsOf(call, 4, ['LIMIT', 'BURST', 'NOTE']);
  if (!fields) return reply.error(SYNTAX);
  const record = controls.override({ ...fields, ...rateOrRule(text(2)), for: forMs });
  return controls
    .copied()
    .then(() => controls.warningsOf(record))
    .then((warnings) => whenSet(controls, record, warnings));
};

/** The number of limits that forgot the key. */
const reset: Act = (call, controls) => {
  const fields = fieldsOf(call, 2, ['LIMIT']);
  if (!fields) return call.reply.error(SYNTAX);
  return controls.reset(fields).then(
    ({ reset: done, failed, unshared }) =>
      whenSaved(
        controls,
        (writer) =>
          failed.length > 0 && done.length === 0
            ? writer.error(`ERR not reset in ${failed.join()}`)
            : writer.integer(done.length),
        unshared,
      ),
    (error: unknown) => (writer) => writer.error(problemText(error)),
  );
};

const list: Act = ({ reply }, controls) =>
  reply.value(
    controls.list().map((record) => {
      const { kind, key, isBinary, limit = '', rule, until, note = '' } = record;
      return {
        kind,
        key: isBinary ? toKeyText(key) : key,
        limit,
        rule: rule === undefined ? '' : JSON.stringify(rule),
        until: Math.round(until / 1000),
        note,
        pattern: patternNoteOf(record) ?? '',
      };
    }),
  );

export const controlCommands: readonly RespCommand[] = [
  {
    name: 'sluice.ban',
    arity: -3,
    maxArity: 5,
    keyIndex: 1,
    summary: 'Denies a key, or all keys of a pattern, for some seconds',
    usage: 'key seconds [note [EXACT]]',
    run: guarded(ban),
  },
  {
    name: 'sluice.unban',
    arity: -2,
    maxArity: 3,
    keyIndex: 1,
    summary: 'Ends a ban: 1, or 0 if there is none',
    usage: 'key [EXACT]',
    run: guarded((call, controls) => {
      const removed = controls.unban({ key: keyOf(call, 2) }) ? 1 : 0;
      return whenSaved(controls, (writer) => writer.integer(removed));
    }),
  },
  {
    name: 'sluice.override',
    arity: -4,
    keyIndex: 1,
    summary: 'Gives a key another rate, or another rule as JSON, for some seconds',
    usage: 'key rate seconds [limit] [BURST n] [NOTE text] [EXACT]',
    run: guarded(override),
  },
  {
    name: 'sluice.removeoverride',
    arity: -2,
    keyIndex: 1,
    summary: 'Ends an override: 1, or 0 if there is none',
    usage: 'key [limit] [EXACT]',
    run: guarded((call, controls) => {
      const fields = fieldsOf(call, 2, ['LIMIT']);
      if (!fields) return call.reply.error(SYNTAX);
      const removed = controls.removeOverride(fields) ? 1 : 0;
      return whenSaved(controls, (writer) => writer.integer(removed));
    }),
  },
  {
    name: 'sluice.reset',
    arity: -2,
    keyIndex: 1,
    summary: 'Forgets what a key has consumed; in how many limits',
    usage: 'key [limit] [EXACT]',
    run: guarded(reset),
  },
  {
    name: 'sluice.controls',
    arity: 1,
    summary: 'Bans and overrides that were set at run time',
    usage: '',
    run: guarded(list),
  },
];
