import { run } from '../../src/cli/run.ts';

function runCli(columns: number, words: readonly string[]) {
  const out: string[] = [];
  const err: string[] = [];
  const code = run(words, {
    print: (line) => out.push(line),
    error: (line) => err.push(line),
    log: (line) => err.push(line),
    columns,
    version: '0.0.0-test',
  });
  return { code, out, err };
}

/** Runs a command on a terminal that records its output streams. */
export function runCliAt(columns: number, words: readonly string[]) {
  const { code, out, err } = runCli(columns, words);
  if (typeof code !== 'number')
    throw new Error(`${words.join(' ')} takes its time: start a process`);
  return { code, out, err };
}

/** The same for an asynchronous command. */
export async function runCliAtAsync(columns: number, words: readonly string[]) {
  const { code, out, err } = runCli(columns, words);
  return { code: await code, out, err };
}

/** Runs a command line; returns its output as one string. */
export function sluice(...words: string[]): { code: number; out: string; err: string } {
  const { code, out, err } = runCliAt(100, words);
  return { code, out: out.join('\n'), err: err.join('\n') };
}
