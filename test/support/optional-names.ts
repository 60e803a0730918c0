/** The optional properties of public options types, read from the source. */

import { readdirSync, readFileSync } from 'node:fs';

export interface OptionalProperty {
  /** The name of the options type. */
  readonly of: string;
  readonly name: string;
  /** Its type, as written. */
  readonly type: string;
}

const { exports } = JSON.parse(readFileSync('package.json', 'utf8')) as {
  exports: Record<string, string | { default: string }>;
};
const entries = Object.values(exports)
  .flatMap((to) => (typeof to === 'string' ? [] : [to.default]))
  .map((file) => file.replace('./dist/esm/', 'src/').replace(/js$/, 'ts'));
const entryTexts = entries.map((file) => readFileSync(file, 'utf8')).join('\n');

const TYPE = /^export (?:interface|type) (\w+Options)\b([\s\S]*?)^(?:\}|$)/gm;
const OPTIONAL = /readonly (\w+)\?:((?:[^;{]|\{[^}]*\})+);?/g;

/** No entry exports the simulator, which reuses a name. */
const types = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((file) => /(?<!\.test)\.ts$/.test(file) && !file.startsWith('simulator'))
  .flatMap((file) => [...readFileSync(`src/${file}`, 'utf8').matchAll(TYPE)])
  .flatMap(([, of, body]) =>
    [...body.matchAll(OPTIONAL)].map(([, name, type]): OptionalProperty => ({ of, name, type })),
  );

/** Of all types that an entry of the package exports. */
export const publicOptions: readonly OptionalProperty[] = types.filter(({ of }) =>
  new RegExp(`\\b${of}\\b`).test(entryTexts),
);

/** Of one type, exported or not. */
export const optionalNames = (type: string): readonly string[] =>
  types.filter(({ of }) => of === type).map(({ name }) => name);
