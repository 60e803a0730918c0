import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { loadConfig } from './file.ts';

let place = createTempDir();
beforeEach(() => {
  place.remove();
  place = createTempDir();
  mkdirSync(join(place.path, 'limits.d'));
});
afterEach(() => place.remove());

/** Loads `main.yaml` beside these files; the folder is left out of the problems. */
function load(main: string, files: Readonly<Record<string, string>> = {}) {
  for (const [name, text] of Object.entries(files)) place.file(name, text);
  const loaded = loadConfig(place.file('main.yaml', main), []);
  if ('config' in loaded) return { config: loaded.config, problems: [] };
  const problems = loaded.problems.map((problem) => problem.replaceAll(`${place.path}/`, ''));
  return { config: undefined, problems };
}

const API = 'limits:\n  api:\n    bucket: { rate: 1/s }\n';

describe('include', () => {
  test('files of a glob and by name: sections are merged, in the order of names', () => {
    const { config, problems } = load(
      `include: ['limits.d/*.yaml', more.yaml]\ndeny: mallory\n${API}`,
      {
        'limits.d/b.yaml': 'limits: { b: { bucket: { rate: 2/s } } }\ndeny: [eve, bob]\n',
        'limits.d/a.yaml': 'limits: { a: { bucket: { rate: 3/s } } }\n',
        'limits.d/.hidden.yaml': 'broken: [\n',
        'limits.d/readme.txt': 'broken: [\n',
        'more.yaml': '# nothing but a section\nunmatched: deny\n',
      },
    );
    expect(problems).toEqual([]);
    expect(config?.limits.map(({ name }) => name)).toEqual(['api', 'a', 'b']);
    expect([0, 1, 2].map((n) => config?.deny.textAt(n))).toEqual(['mallory', 'eve', 'bob']);
    expect(config?.unmatched).toBe('deny');
  });

  test('a limit in two files: the error names both, with line and column', () => {
    const { problems } = load("include: 'limits.d/*'\n", {
      'limits.d/a.yaml': `\n${API}`,
      'limits.d/b.yaml': API,
    });
    expect(problems).toEqual([
      [
        'limits.d/b.yaml:2:3: expected `limits.api` to be defined once, but limits.d/a.yaml:3 has it, too, got "limits.api"',
        '    2 |   api:',
        '      |   ^',
      ].join('\n'),
    ]);
  });

  test('a section in two files, an include in an included file: are errors', () => {
    const { problems } = load('include: a.yaml\nunmatched: deny\n', {
      'a.yaml': 'unmatched: allow\ninclude: b.yaml\n',
    });
    expect(problems.map((problem) => problem.split('\n')[0])).toEqual([
      'a.yaml:1:1: expected `unmatched` to be defined once, but main.yaml:2 has it, too, got "unmatched"',
      'a.yaml:2:1: expected `include` to be in the main file only, got "b.yaml"',
    ]);
  });

  test('mistakes: are reported at their position in their file', () => {
    const { problems } = load(
      'include: [a.yaml]\ndeny: [10.1.2.3/8]\nlimits: { "x y": { bucket: { rate: 1 } } }\n',
      {
        'a.yaml': 'deny: [fine, { regex: "(" }]\nlimits:\n  b: { bucket: { rate: x } }\nbogus: 1\n',
      },
    );
    expect(problems.map((problem) => /^\S+ expected `[^`]*`/.exec(problem)?.[0])).toEqual([
      'main.yaml:2:8: expected `deny[0]`',
      'main.yaml:3:11: expected `limits["x y"]`',
      'a.yaml:1:16: expected `deny[2].regex`',
      'a.yaml:3:18: expected `limits.b.bucket.rate`',
      'a.yaml:4:1: expected `bogus`',
    ]);
  });

  test('a YAML error, a file that cannot be read: names the file', () => {
    const { problems } = load('include: [a.yaml, gone.yaml, limits.d]\n', {
      'a.yaml': 'limits: {{\n',
    });
    expect(problems.map((problem) => problem.split('\n')[0])).toEqual([
      expect.stringMatching(/^a\.yaml:2:1: /),
      expect.stringMatching(/^main\.yaml:1:19: cannot read gone\.yaml: ENOENT/),
      'main.yaml:1:30: cannot read limits.d: not a regular file',
    ]);
  });

  test('the bound of all files together: counts bytes, not characters', () => {
    const names = ['a', 'b', 'c', 'd', 'e'].map((name) => `${name}.yaml`);
    const files = Object.fromEntries(names.map((name) => [name, `# ${'€'.repeat(1_300_000)}\n`]));
    const { problems } = load(`include: [${names}]\n`, files);
    expect(problems.join()).toMatch(/cannot read e\.yaml: more than \d+ bytes/);
  });

  test('the main file matches its own glob: is not included, and a glob without files is no error', () => {
    const { config, problems } = load(`include: ['*.yaml', 'limits.d/*.yml']\n${API}`);
    expect(problems).toEqual([]);
    expect(config?.limits.length).toBe(1);
  });

  test.each([
    ['include: 7', 'cannot read `include`: expected a file name'],
    ["include: ['*/a.yaml']", 'cannot read `include[0]`: expected a file name'],
    ["include: ['gone/*.yaml']", 'cannot read `include[0]`: ENOENT'],
  ])('%s: is an error', (text, message) => {
    expect(load(text).problems[0]).toContain(message);
  });

  test('a name such as __proto__: is a name like any other', () => {
    const { problems } = load('include: a.yaml\n', {
      'a.yaml': '__proto__: 1\nlimits: { __proto__: { bucket: { rate: x } } }\n',
    });
    expect(problems.map((problem) => problem.split(':')[0])).toEqual(['a.yaml', 'a.yaml']);
  });
});
