/**
 *     GET  /controls                                     bans and overrides in effect
 *     POST /ban    key for [note]      POST /unban key
 *     POST /override key rate|rule for [limit] [burst] [note]      POST /remove-override key [limit]
 *     POST /reset  key [limit]
 *
 * The response follows when the change is on disk; it is in effect before. If it is not, `unsaved` says why. If peers do
 * not get it, `unshared` does.
 *
 * `exact=true` takes a key literally that reads like a pattern. Parameters come in the URL, as a form or as JSON, and
 * not in the URL and a body together. In a URL `rule` is JSON.
 */

import { ConfigError } from '../../../core/errors.ts';
import { tryParseJson } from '../../../core/json.ts';
import { isRecord } from '../../../core/options.ts';
import type { SaveResult } from '../../control/control-journal.ts';
import { type ControlRecord, keyFieldOf, patternNoteOf } from '../../control/control-record.ts';
import { CONTROLS_FIELD } from '../../control/control-table.ts';
import type { ControlFields, Controls } from '../../control/controls.ts';
import { toKeyText } from '../../keys/binary-key.ts';
import { parseJsonBody } from './check-request.ts';
import { adminEndpoint, type Endpoint, READ_METHODS, WRITE_METHODS } from './endpoint.ts';
import type { RequestHead } from './key.ts';
import { readParameters, ValidationProblem } from './parameters.ts';
import {
  type EventualResponse,
  type HttpResponse,
  jsonResponse,
  problemResponse,
} from './response.ts';

type Action = (fields: ControlFields) => EventualResponse;

const NAMES = {
  ban: ['key', 'exact', 'for', 'note'],
  unban: ['key', 'exact'],
  override: ['key', 'exact', 'limit', 'rate', 'burst', 'rule', 'for', 'note'],
  'remove-override': ['key', 'exact', 'limit'],
  reset: ['key', 'exact', 'limit'],
} as const;

export function controlRoutes(controls: Controls): readonly (readonly [string, Endpoint])[] {
  const setView = (record: ControlRecord) => ({
    ...viewOf(record),
    unshared: controls.sharingProblemOf(record),
  });
  const actions: Readonly<Record<keyof typeof NAMES, Action>> = {
    ban: async (fields) => {
      const record = controls.ban(fields);
      return jsonResponse(200, { ...setView(record), ...unsavedOf(await controls.saved()) });
    },
    unban: async (fields) => {
      const isFound = controls.unban(fields);
      return removed(isFound, 'The key is not banned.', await controls.saved());
    },
    override: async (fields) => {
      const record = controls.override(fields);
      await controls.copied();
      const warnings = await controls.warningsOf(record);
      return jsonResponse(200, {
        ...setView(record),
        ...(warnings.length > 0 && { warnings }),
        ...unsavedOf(await controls.saved()),
      });
    },
    'remove-override': async (fields) => {
      const isFound = controls.removeOverride(fields);
      await controls.copied();
      return removed(isFound, 'The key has no override.', await controls.saved());
    },
    reset: async (fields) => {
      const result = await controls.reset(fields);
      const saved = await controls.saved();
      if (result.failed.length === 0 || result.reset.length > 0)
        return jsonResponse(200, { ...result, ...failureOf(saved) });
      const where = result.failed.join(', ');
      const why = 'the backend is unavailable, or cannot forget a key; see the log';
      return problemResponse(502, `The key is not reset in ${where}: ${why}.`);
    },
  };
  const list = (): HttpResponse => jsonResponse(200, { controls: controls.list().map(viewOf) });
  return [
    ['/controls', adminEndpoint(READ_METHODS, list)],
    ...Object.entries(actions).map(
      ([name, act]) =>
        [
          `/${name}`,
          adminEndpoint(WRITE_METHODS, (request, queryAt, body) => {
            const names = NAMES[name as keyof typeof NAMES];
            const fields = readFields(request, queryAt, body, names);
            if (fields instanceof ValidationProblem) return problemResponse(400, fields.detail);
            return withProblems(act, fields);
          }),
        ] as const,
    ),
  ];
}

export const CONTROL_HELP = `  GET  /controls                          bans and overrides that were set at run time
  POST /ban?key=alice&for=1h[&note=…]     denies a key, or all keys of a pattern; /unban?key=alice
                                          &exact=true takes a key such as a*b literally
  POST /override?key=alice&rate=100/s&for=1d[&limit=api][&burst=200]   /remove-override?key=alice
  POST /reset?key=alice[&limit=api]       forgets what a key has consumed
`;

/** A control as operators see it: times as text. */
function viewOf(record: ControlRecord) {
  const { kind, key, isBinary, limit, rule, until, setAt, note } = record;
  const isExact = isBinary && typeof keyFieldOf(key) === 'string'; // it would read as a pattern
  return {
    kind,
    key: isBinary ? toKeyText(key) : key,
    ...(isBinary && { bytes: key }),
    ...(isExact && { exact: true }),
    pattern: patternNoteOf(record),
    limit,
    rule,
    until: new Date(until).toISOString(),
    since: new Date(setAt).toISOString(),
    note,
  };
}

/** Why a control is not on disk, as the field `unsaved`. */
const unsavedOf = (result: SaveResult) => (result.isSaved ? {} : { unsaved: result.reason });

/** The field `unsaved` after a removal or a reset: without a file, nothing can restore what it ended. */
const failureOf = (result: SaveResult) =>
  result.isSaved || !result.hasFile ? {} : { unsaved: result.reason };

const removed = (isFound: boolean, otherwise: string, saved: SaveResult): HttpResponse =>
  isFound
    ? jsonResponse(200, { removed: true, ...failureOf(saved) })
    : problemResponse(404, otherwise);

async function withProblems(act: Action, fields: ControlFields): Promise<HttpResponse> {
  try {
    return await act(fields);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return problemResponse(error.field === CONTROLS_FIELD ? 409 : 400, error.message);
  }
}

/** Values of a query or a form are text; `burst` is a number there too, and `rule` JSON. */
function readFields(
  { headers, url = '' }: RequestHead,
  queryAt: number,
  body: Buffer,
  names: readonly string[],
): ControlFields | ValidationProblem {
  if (body.length > 0 && queryAt < url.length)
    return new ValidationProblem('body', 'left out: there are parameters in the URL', '');
  const type = String(headers['content-type'] ?? '').toLowerCase();
  if (body.length > 0 && type.startsWith('application/json')) {
    const parsed = parseJsonBody(body);
    if (parsed instanceof ValidationProblem) return parsed;
    if (isRecord(parsed.value)) return withExactKey(parsed.value);
    return new ValidationProblem('body', 'an object', parsed.value);
  }
  const values =
    body.length > 0
      ? readParameters(body.toString('latin1'), 0, names)
      : readParameters(url, queryAt, names);
  if (values instanceof ValidationProblem) return values;
  const fields: Record<string, unknown> = {};
  for (const [n, name] of names.entries()) {
    const value = values[n];
    if (value === undefined) continue;
    const text = toKeyText(value);
    if (name === 'key') fields[name] = keyFieldOf(value);
    else if (name === 'burst') fields[name] = Number(value);
    else if (name === 'exact') fields[name] = text === 'true' || text;
    else if (name === 'rule') fields[name] = tryParseJson(text);
    else fields[name] = text;
    if (fields[name] === undefined) return new ValidationProblem(name, 'JSON', text);
  }
  return withExactKey(fields);
}

/** `exact: true` is another spelling of `key: { exact: … }`. */
function withExactKey({ exact, ...fields }: ControlFields): ControlFields | ValidationProblem {
  if (exact === undefined) return fields;
  if (exact !== true) return new ValidationProblem('exact', 'true, or left out', exact);
  const { key } = fields;
  return { ...fields, key: typeof key === 'string' ? { exact: key } : key };
}
