import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { loadScenario } from '../src/cli/simulate/scenario-file.ts';
import { expectationText } from '../src/cli/simulate/scenario-report.ts';
import { checkExpectations } from '../src/simulator/scenario/expectations.ts';
import { runScenario } from '../src/simulator/scenario/run.ts';

const files = readdirSync('scenarios').filter((file) => file.endsWith('.yaml'));

/** Rows of the table of claims: the quoted words and the file. */
function claims(): { readonly words: string; readonly file: string }[] {
  const text = readFileSync('docs/reference/scenarios.md', 'utf8');
  const rows = text.matchAll(/^\| "(.+?)" \| \[[\w-]+\]\(\.\.\/\.\.\/scenarios\/([\w.-]+)\) \|$/gm);
  return [...rows].map(([, words, file]) => ({ words, file }));
}

/** The expectations of a file that its run does not meet. */
async function missedIn(file: string): Promise<string[]> {
  const scenario = loadScenario(file);
  expect(scenario.expect.length).toBeGreaterThan(0);
  const missed = checkExpectations(await runScenario(scenario)).filter(({ isMet }) => !isMet);
  return missed.map(expectationText);
}

describe('scenarios', () => {
  test('each begins with a comment of one sentence', () => {
    const offenders = files.filter((file) => {
      const text = readFileSync(`scenarios/${file}`, 'utf8');
      const [comment = ''] = /^(?:# .*\n)+/.exec(text) ?? [];
      return !/^[^.]+\.$/.test(comment.replace(/^# /gm, '').replaceAll('\n', ' ').trim());
    });
    expect(offenders).toEqual([]);
  });

  test('each shows a claim of README.md, which the documentation quotes', () => {
    const readme = readFileSync('README.md', 'utf8').replace(/\s+/g, ' ');
    expect(
      claims()
        .map(({ words }) => words)
        .filter((words) => !readme.includes(words)),
    ).toEqual([]);
    const listed = new Set(claims().map(({ file }) => file));
    expect([...listed].sort()).toEqual(files.sort());
  });

  test.each(files)('%s: every figure is in its range', async (file) => {
    expect(await missedIn(`scenarios/${file}`)).toEqual([]);
  });

  test('the first example of docs/reference/scenarios.md: every figure is in its range', async () => {
    const page = readFileSync('docs/reference/scenarios.md', 'utf8');
    const folder = mkdtempSync(join(tmpdir(), 'sluice-scenarios-'));
    try {
      const file = join(folder, 'example.yaml');
      writeFileSync(file, /^```yaml\n([\s\S]*?)^```/m.exec(page)?.[1] ?? '');
      expect(await missedIn(file)).toEqual([]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
