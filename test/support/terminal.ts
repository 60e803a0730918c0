import { commandsOf } from '../../src/cli/commands.ts';
import type { CommandEntry } from '../../src/cli/framework/command.ts';
import { runAmong } from '../../src/cli/run.ts';

/** All commands, loaded: a command that does not wait then returns its exit code at once. */
const COMMANDS = await loadAll(commandsOf());

async function loadAll(entries: readonly CommandEntry[]): Promise<CommandEntry[]> {
  const loading = entries.map(async (entry) => {
    const loaded = await entry.load();
    const inner =
      'commands' in loaded ? { ...loaded, commands: await loadAll(loaded.commands) } : loaded;
    return { ...entry, load: () => inner };
  });
  return Promise.all(loading);
}

function runCli(columns: number, words: readonly string[]) {
  const out: string[] = [];
  const err: string[] = [];
  const code = runAmong(COMMANDS, words, {
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
