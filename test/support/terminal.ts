import { run } from '../../src/cli/run.ts';

/** Runs a command line as a user would, and tells what was printed where. */
export function sluice(...words: string[]): { code: number; out: string; err: string } {
  const out: string[] = [];
  const err: string[] = [];
  const code = run(words, {
    print: (line) => out.push(line),
    complain: (line) => err.push(line),
    columns: 100,
    version: '0.0.0-test',
  });
  return { code, out: out.join('\n'), err: err.join('\n') };
}
