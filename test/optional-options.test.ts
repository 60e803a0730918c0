/** Every optional option of a public options type accepts undefined: projects with exactOptionalPropertyTypes need it. */

import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const { exports } = JSON.parse(readFileSync('package.json', 'utf8')) as {
  exports: Record<string, string | { default: string }>;
};
const entries = Object.values(exports)
  .flatMap((to) => (typeof to === 'string' ? [] : [to.default]))
  .map((file) => file.replace('./dist/esm/', 'src/').replace(/js$/, 'ts'));
const entryTexts = entries.map((file) => readFileSync(file, 'utf8')).join('\n');

const TYPE = /^export (?:interface|type) (\w+Options)\b([\s\S]*?)^(?:\}|$)/gm;
const OPTIONAL = /readonly (\w+)\?:((?:[^;{]|\{[^}]*\})+);?/g;

/** The optional properties of all public options types. No entry exports the simulator, which reuses a name. */
const options = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((file) => /(?<!\.test)\.ts$/.test(file) && !file.startsWith('simulator'))
  .flatMap((file) => [...readFileSync(`src/${file}`, 'utf8').matchAll(TYPE)])
  .filter(([, name]) => new RegExp(`\\b${name}\\b`).test(entryTexts))
  .flatMap(([, name, body]) =>
    [...body.matchAll(OPTIONAL)].map(([, option, type]) => ({ option: `${name}.${option}`, type })),
  );

test('options: every optional one accepts undefined', () => {
  expect(options.length).toBeGreaterThan(150);
  const refusing = options.filter(({ type }) => !/\b(?:undefined|unknown)\b/.test(type));
  expect(refusing.map(({ option }) => option)).toEqual([]);
});
