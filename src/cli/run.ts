import { InUseError, SluiceError } from '../core/errors.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import { commandsOf } from './commands.ts';
import {
  type Command,
  type CommandEntry,
  CommandError,
  type CommandGroup,
  EXIT_CANNOT_RUN,
  EXIT_IN_USE,
  EXIT_OK,
  type Terminal,
} from './framework/command.ts';

const NAME = 'sluice';
const SUMMARY = 'a rate and concurrency limiter';

/** Loads the command that the words name, and runs it. */
export async function run(
  words: readonly string[],
  terminal: Terminal,
  modules?: readonly BackendModule[],
): Promise<number> {
  if (words[0] === '--version') {
    terminal.print(terminal.version);
    return EXIT_OK;
  }
  return runAmong(commandsOf(modules), words, terminal);
}

/** Runs one of these commands; at once if it is loaded. */
export const runAmong = (
  commands: readonly CommandEntry[],
  words: readonly string[],
  terminal: Terminal,
): number | Promise<number> => runGroup({ commands }, NAME, SUMMARY, words, terminal);

const isHelpFlag = (word: string): boolean => word === '--help' || word === '-h';

function runGroup(
  { commands, fileCommand }: CommandGroup,
  path: string,
  summary: string,
  words: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const [name, ...args] = words;
  if (name === undefined || isHelpFlag(name) || name === 'help') {
    const listed = fileCommand ? [fileCommand, ...commands] : commands;
    terminal.print(groupHelp(listed, path, summary));
    return name === undefined ? EXIT_CANNOT_RUN : EXIT_OK;
  }
  const entry = commands.find((candidate) => candidate.name === name);
  if (!entry && fileCommand && isFileOrFlag(name))
    return runEntry(fileCommand, path, words, terminal);
  if (!entry) {
    const names = commands.map((candidate) => candidate.name).join(', ');
    terminal.error(`${path}: expected one of ${names}, got "${name}"; see ${path} --help`);
    return EXIT_CANNOT_RUN;
  }
  return runEntry(entry, `${path} ${name}`, args, terminal);
}

const isFileOrFlag = (word: string): boolean => /^-|[./\\]/.test(word);

function runEntry(
  entry: CommandEntry,
  path: string,
  args: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const runLoaded = (loaded: Command | CommandGroup): number | Promise<number> =>
    'commands' in loaded
      ? runGroup(loaded, path, entry.summary, args, terminal)
      : runCommand(loaded, path, args, terminal);
  const loaded = entry.load();
  return loaded instanceof Promise ? loaded.then(runLoaded) : runLoaded(loaded);
}

function runCommand(
  command: Command,
  path: string,
  args: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  if (args.some(isHelpFlag)) {
    terminal.print(command.help);
    return EXIT_OK;
  }
  const printError = (error: unknown): number => {
    if (!(error instanceof CommandError || error instanceof SluiceError)) throw error;
    terminal.error(`${path}: ${error.message}`);
    return error instanceof InUseError ? EXIT_IN_USE : EXIT_CANNOT_RUN;
  };
  try {
    const code = command.run(args, terminal);
    return code instanceof Promise ? code.catch(printError) : code;
  } catch (error) {
    return printError(error);
  }
}

function groupHelp(commands: readonly CommandEntry[], path: string, summary: string): string {
  const rows = commands.map((command) => `  ${command.name.padEnd(10)} ${command.summary}`);
  return `${path}: ${summary}

usage: ${path} <command> [options]

${rows.join('\n')}

${path} <command> --help describes a command.`;
}
