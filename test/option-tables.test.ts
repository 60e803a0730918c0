import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import {
  OPTION_TABLES,
  optionsOf,
  rowsOf,
  sourceOfOptions,
  withTypes,
} from './support/option-tables.ts';

const linesOf = (page: string): string[] => readFileSync(page, 'utf8').split('\n');

describe.each(OPTION_TABLES)('$page: $interfaces', (own) => {
  const rows = rowsOf(linesOf(own.page), own);

  test('documents every option', () => {
    const text = readFileSync(own.page, 'utf8');
    const options = own.interfaces.flatMap((name) => optionsOf(name)).map(({ name }) => name);
    expect(options.length).toBeGreaterThan(1);
    expect(options.filter((name) => !new RegExp(`\`(?:\\w+\\.)?${name}[(\`]`).test(text))).toEqual(
      [],
    );
  });

  test('says which options are required', () => {
    const wrong = rows.filter(
      ({ cells, member }) => (cells[2] === 'required') === member.isOptional,
    );
    expect(wrong.map(({ member }) => member.name)).toEqual([]);
  });

  test('gives the default that the code reads', () => {
    const wrong = rows.flatMap(({ cells, member }) => {
      if (cells[2] === 'by limit') return [];
      const expected = own.interfaces.map((name) => defaultOf(name, member.name)).find(Boolean);
      return expected === undefined || isDefault(cells[2], expected)
        ? []
        : [`${member.name}: ${expected}, not ${cells[2]}`];
    });
    expect(wrong).toEqual([]);
  });
});

test.each([...new Set(OPTION_TABLES.map(({ page }) => page))])(
  '%s: types are those of the source, as `npm run docs:api` writes them',
  async (page) => {
    await expect(withTypes(page)).toMatchFileSnapshot(`../${page}`);
  },
);

test('defaults are found in the code', () => {
  const found = OPTION_TABLES.flatMap((own) =>
    rowsOf(linesOf(own.page), own).filter(({ member }) =>
      own.interfaces.some((name) => defaultOf(name, member.name) !== undefined),
    ),
  );
  expect(found.length).toBeGreaterThan(25);
});

/** Whether a cell begins with this default: a word, a number, or a duration in any unit. */
function isDefault(cell: string, expected: string): boolean {
  const text = cell.replaceAll(/[`']|(?<=\d),(?=\d)/g, '');
  const [, amount, unit] = /^([\d.]+) ?(\w+)?/.exec(text) ?? [];
  const inMs = amount === undefined ? Number.NaN : Number(amount) * (UNITS[unit ?? 'ms'] ?? 1);
  const isNone = text === 'none' && expected === '0';
  return isNone || text.startsWith(expected) || inMs === Number(expected);
}

const UNITS: Readonly<Record<string, number>> = {
  ...{ ms: 1, s: 1000, second: 1000, seconds: 1000, m: 60_000, minute: 60_000, minutes: 60_000 },
  ...{ h: 3_600_000, hour: 3_600_000, d: 86_400_000 },
};

/** A default that the file of an interface passes to its reader, as a literal, a constant or a product of these. */
function defaultOf(name: string, option: string): string | undefined {
  const source = sourceOfOptions(name);
  const call = new RegExp(`[rR]eader\\.(\\w+)\\(\\s*'${option}',([^;]*?)\\)[,;\\s)]`).exec(source);
  if (call === null || call[1] === 'optional') return undefined;
  const [, method, args] = call;
  const last = args.split(/,(?![^{[(]*[}\])])/).map((part) => part.trim());
  const position = { duration: 0, durationOrInfinity: 0, boolean: 0, positive: 0 }[method] ?? 1;
  return literalOf(last[position] ?? '', source);
}

function literalOf(text: string, source: string): string | undefined {
  const [, word] = /^'([\w-]+)'$/.exec(text) ?? [];
  if (word !== undefined || /^(?:true|false)$/.test(text)) return word ?? text;
  if (!/^[\w.]+(?: \* [\w.]+)*$/.test(text)) return undefined;
  const factors = text.split(' * ').map((factor) => {
    const [, constant] = new RegExp(`const ${factor}\\b[^=]* = ([^;]+);`).exec(source) ?? [];
    return /^[\d._]+$/.test(factor)
      ? Number(factor.replaceAll('_', ''))
      : constant === undefined || !/^\w+$/.test(factor)
        ? Number.NaN
        : Number(literalOf(constant, source));
  });
  const product = factors.reduce((a, b) => a * b, 1);
  return Number.isNaN(product) ? undefined : `${product}`;
}
