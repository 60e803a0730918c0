/**
 * Control of keys at run time over RESP, for operators.
 *
 *     AUTH admin <admin.token>                     required first
 *     SLUICE.BAN key seconds [note [EXACT]]        SLUICE.UNBAN key [EXACT]
 *     SLUICE.OVERRIDE key rate seconds [limit]     SLUICE.REMOVEOVERRIDE key [limit]
 *     SLUICE.RESET key [limit]                     SLUICE.CONTROLS
 *
 * The password of the port is known to every application that checks limits, so it does not allow these commands.
 */

import { ConfigError, errorMessageOf } from '../../../core/errors.ts';
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
      return reply.error(`ERR ${errorMessageOf(error)}`);
    }
  };

const seconds = ({ args }: Invocation, n: number): number => args.integer(n) * 1000;

/** The key is bytes, UTF-8 or not. With EXACT as argument `exactAt`, it is no pattern. @throws {ConfigError} */
function keyOf({ args }: Invocation, exactAt = Infinity): ReturnType<typeof keyFieldOf> | object {
  const field = keyFieldOf(args.text(1));
  if (args.count <= exactAt) return field;
  const word = toKeyText(args.text(exactAt));
  if (word.toUpperCase() !== 'EXACT')
    throw new ConfigError(`argument ${exactAt}`, 'EXACT, or left out', word);
  return typeof field === 'string' ? { exact: field } : field;
}

const limitAt = ({ args }: Invocation, n: number) =>
  args.count > n ? { limit: toKeyText(args.text(n)) } : {};

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
  const fields = { key: keyOf(call), rate: text(2), for: forMs, ...limitAt(call, 4) };
  const record = controls.override(fields);
  return controls
    .copied()
    .then(() => controls.warningsOf(record))
    .then((warnings) => whenSet(controls, record, warnings));
};

/** The number of limits that forgot the key. */
const reset: Act = (call, controls) =>
  controls.reset({ key: keyOf(call), ...limitAt(call, 2) }).then(
    ({ reset: done, failed, unshared }) =>
      whenSaved(
        controls,
        (writer) =>
          failed.length > 0 && done.length === 0
            ? writer.error(`ERR not reset in ${failed.join()}`)
            : writer.integer(done.length),
        unshared,
      ),
    (error: unknown) => (writer) => writer.error(`ERR ${errorMessageOf(error)}`),
  );

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
    maxArity: 5,
    keyIndex: 1,
    summary: 'Gives a key another rate for some seconds',
    usage: 'key rate seconds [limit]',
    run: guarded(override),
  },
  {
    name: 'sluice.removeoverride',
    arity: -2,
    maxArity: 3,
    keyIndex: 1,
    summary: 'Ends an override: 1, or 0 if there is none',
    usage: 'key [limit]',
    run: guarded((call, controls) => {
      const removed = controls.removeOverride({ key: keyOf(call), ...limitAt(call, 2) }) ? 1 : 0;
      return whenSaved(controls, (writer) => writer.integer(removed));
    }),
  },
  {
    name: 'sluice.reset',
    arity: -2,
    maxArity: 3,
    keyIndex: 1,
    summary: 'Forgets what a key has consumed; in how many limits',
    usage: 'key [limit]',
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
