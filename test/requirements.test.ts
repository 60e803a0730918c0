import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

interface Row {
  readonly system: string;
  readonly requirement: string;
  readonly doneIn: string;
  readonly heldBy: string;
}

const SYSTEMS = ['shared permits', 'DThrottle', 'Vector', 'TChannel', 'Numaflow'];

/** The rows of the table of requirements: those with four cells. */
const rowsIn = (page: string): Row[] =>
  page
    .split('\n')
    .filter((line) => line.startsWith('| ') && !line.startsWith('| ---'))
    .map((line) => line.slice(2, -2).split(' | '))
    .filter((cells) => cells.length === 4 && cells[0] !== 'system')
    .map(([system = '', requirement = '', doneIn = '', heldBy = '']) => ({
      ...{ system, requirement, doneIn, heldBy },
    }));

const pathsIn = (cell: string): string[] =>
  [...cell.matchAll(/`([^`]+)`/g)].map(([, path]) => path ?? '');

/** Files and titles: `path`: "title"; `path`: "title". */
const testsIn = (cell: string): { path: string; title: string }[] =>
  [...cell.matchAll(/`([^`]+)`: "([^"]+)"/g)].map(([, path = '', title = '']) => ({ path, title }));

/** What is wrong with a row; undefined if nothing is. */
function mistakeOf({ system, doneIn, heldBy }: Row): string | undefined {
  if (!SYSTEMS.includes(system)) return `unknown system: ${system}`;
  const missing = pathsIn(doneIn).find((path) => !existsSync(path));
  if (missing !== undefined || pathsIn(doneIn).length === 0) return `no such file: ${missing}`;
  if (/^(open|outside): ./.test(heldBy)) return undefined;
  const tests = testsIn(heldBy);
  if (tests.length === 0) return `neither a test nor a reason: ${heldBy}`;
  const absent = tests.find(
    ({ path, title }) => !existsSync(path) || !readFileSync(path, 'utf8').includes(title),
  );
  return absent && `no such test: ${absent.path}: ${absent.title}`;
}

const rows = rowsIn(readFileSync('docs/explanation/requirements.md', 'utf8'));

describe('docs/explanation/requirements.md', () => {
  test('has the requirements of five systems', () => {
    expect(rows.length).toBeGreaterThan(90);
    expect([...new Set(rows.map(({ system }) => system))]).toEqual(SYSTEMS);
  });

  test('names only files and tests that exist, or gives a reason', () => {
    const mistakes = rows.flatMap((row) => {
      const mistake = mistakeOf(row);
      return mistake === undefined ? [] : [`${row.requirement}: ${mistake}`];
    });
    expect(mistakes).toEqual([]);
  });

  test('states each requirement once', () => {
    const stated = rows.map(({ system, requirement }) => `${system}: ${requirement}`);
    expect(stated.filter((each, n) => stated.indexOf(each) !== n)).toEqual([]);
  });

  const GOOD: Row = {
    system: 'Vector',
    requirement: 'one',
    doneIn: '`src/policies/adaptive.ts`',
    heldBy: '`test/requirements.test.ts`: "states each requirement once"',
  };

  test.each([
    [{}, undefined],
    [{ system: 'other' }, /^unknown system/],
    [{ doneIn: '`src/none.ts`' }, /^no such file: src\/none.ts/],
    [{ heldBy: 'open:' }, /^neither a test nor a reason/],
    [{ heldBy: '`test/none.test.ts`: "one"' }, /^no such test/],
    [
      { heldBy: `\`test/requirements.test.ts\`: "${['no', 'such'].join(' ')} title"` },
      /^no such test/,
    ],
  ])('a row with %j: the test above reports %s', (change, mistake) => {
    const found = mistakeOf({ ...GOOD, ...change });
    if (mistake === undefined) expect(found).toBeUndefined();
    else expect(found).toMatch(mistake);
  });
});
