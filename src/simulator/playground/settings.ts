/**
 * All settings of the playground, read from a link and written to one.
 *
 *     #traffic=hog&rate=100&clients=10&factor=20&…&a=bucket&a.rate=10&a.burst=20&…&b=none&seconds=60&seed=1
 *
 * A link is untrusted: each value is checked against the bounds of its field. An invalid value is reported and replaced
 * by the default.
 */

import { preview } from '../../core/errors.ts';
import { suggestName } from '../../core/suggestion.ts';
import {
  type Field,
  type Fields,
  fieldProblem,
  number,
  parseField,
  type Settings,
} from './fields.ts';
import { LIMIT_KIND, limitFields, SIDES } from './limits.ts';
import { SERVER_FIELDS } from './server.ts';
import { TRAFFIC, TRAFFIC_FIELDS } from './traffic.ts';

/** Longer links are rejected. */
const MAX_LINK_CHARS = 4000;

/** The most problems of a link that are reported. */
const MAX_PROBLEMS = 5;

const RUN_FIELDS: Fields = {
  seconds: number('Length', 's', [10, 120, 1], 60),
  seed: number('Seed', '', [1, 9999, 1], 1),
};

/** The settings in groups, as a form shows them. They depend on the kinds of traffic and limits. */
export interface FieldGroups {
  readonly traffic: Fields;
  readonly server: Fields;
  readonly a: Fields;
  readonly b: Fields;
  readonly run: Fields;
}

const prefixed = (prefix: string, fields: Fields): Fields =>
  Object.fromEntries(Object.entries(fields).map(([name, field]) => [`${prefix}.${name}`, field]));

type Kinds = Readonly<Record<'traffic' | 'a' | 'b', string>>;

function groupsOf({ traffic, a, b }: Kinds): FieldGroups {
  return {
    traffic: { traffic: TRAFFIC, ...TRAFFIC_FIELDS[traffic] },
    server: SERVER_FIELDS,
    a: { a: LIMIT_KIND, ...prefixed('a', limitFields(a)) },
    b: { b: LIMIT_KIND, ...prefixed('b', limitFields(b)) },
    run: RUN_FIELDS,
  };
}

export const fieldGroups = (settings: Settings): FieldGroups => groupsOf(settings as Kinds);

const allOf = (groups: FieldGroups): Fields => Object.assign({}, ...Object.values(groups));

/** Every name that a link may have, over all kinds. */
const KNOWN_NAMES: readonly string[] = [
  ...Object.keys(TRAFFIC_FIELDS).map((traffic) => groupsOf({ traffic, a: 'none', b: 'none' })),
  ...Object.keys(LIMIT_KIND.options).map((kind) =>
    groupsOf({ traffic: 'steady', a: kind, b: kind }),
  ),
].flatMap((groups) => Object.keys(allOf(groups)));

/** Used where a link names no limit. */
const INITIAL: Readonly<Record<string, string>> = { a: 'bucket', b: 'none' };

export interface ReadSettings {
  readonly settings: Settings;
  /** One sentence for each setting that is not used. */
  readonly problems: readonly string[];
}

/** Reads settings by name. Those that are left out or invalid have their defaults. */
export function readSettings(given: Readonly<Record<string, string>>): ReadSettings {
  const problems: string[] = [];
  const read = (name: string, field: Field): number | string => {
    const text = Object.hasOwn(given, name) ? given[name] : undefined;
    if (text === undefined) return Object.hasOwn(INITIAL, name) ? INITIAL[name] : field.initial;
    const value = parseField(field, text);
    if (value === undefined) problems.push(fieldProblem(name, field, text));
    return value ?? field.initial;
  };
  const kinds = {
    traffic: String(read('traffic', TRAFFIC)),
    ...Object.fromEntries(SIDES.map((side) => [side, String(read(side, LIMIT_KIND))])),
  } as Kinds;
  const { traffic: _, a: _a, b: _b, ...others } = allOf(groupsOf(kinds));
  const settings: Record<string, number | string> = { ...kinds };
  for (const [name, field] of Object.entries(others)) settings[name] = read(name, field);
  for (const name of Object.keys(given))
    if (!KNOWN_NAMES.includes(name)) problems.push(unknownSetting(name));
  return { settings, problems: problems.slice(0, MAX_PROBLEMS) };
}

const unknownSetting = (name: string): string =>
  [`${preview(name)}: no such setting`, suggestName(name, KNOWN_NAMES)]
    .filter((part) => part !== undefined)
    .join('; ');

/** Reads the fragment of an address, without the names in `ofPage`. */
export function readLink(fragment: string, ofPage: readonly string[] = []): ReadSettings {
  if (fragment.length > MAX_LINK_CHARS) {
    const { settings } = readSettings({});
    const problem = `the link: expected at most ${MAX_LINK_CHARS} characters, got ${fragment.length}`;
    return { settings, problems: [problem] };
  }
  const parameters = [...new URLSearchParams(fragment)].filter(([name]) => !ofPage.includes(name));
  return readSettings(Object.fromEntries(parameters));
}

/** The settings that have an effect, as a link. */
export function linkOf(settings: Settings): string {
  const link = new URLSearchParams();
  for (const name of Object.keys(allOf(fieldGroups(settings)))) link.set(name, `${settings[name]}`);
  return link.toString();
}

/** Changes one setting. Settings that another kind of traffic or limit adds get their defaults. */
export function changeSetting(settings: Settings, name: string, value: number | string): Settings {
  const texts = Object.entries({ ...settings, [name]: value }).map(
    ([each, of]) => [each, String(of)] as const,
  );
  return readSettings(Object.fromEntries(texts)).settings;
}
