/** Finds the command that was typed and runs it; every way to get it wrong ends in one clear line. */

import { SluiceError } from '../core/errors.ts';
import { check } from './check.ts';
import { config } from './config.ts';
import { explain } from './explain.ts';
import {
  type Command,
  type CommandGroup,
  EXIT_OK,
  EXIT_USAGE,
  type Terminal,
  UsageError,
} from './framework/command.ts';
import { groups } from './groups.ts';
import { peers } from './peers.ts';
import { pool } from './pool.ts';
import { serve } from './serve.ts';
import { simulate } from './simulate/simulate.ts';
import { trace } from './trace.ts';

const ROOT: CommandGroup = {
  name: 'sluice',
  summary: 'keeps calls inside a limit',
  commands: [serve, check, explain, config, peers, pool, groups, trace, simulate],
};

export function run(words: readonly string[], terminal: Terminal): number | Promise<number> {
  return runGroup(ROOT, ROOT.name, words, terminal);
}

const isHelpFlag = (word: string): boolean => word === '--help' || word === '-h';

function runGroup(
  group: CommandGroup,
  path: string,
  words: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const [name, ...args] = words;
  if (name === '--version' && group === ROOT) {
    terminal.print(terminal.version);
    return EXIT_OK;
  }
  if (name === undefined || isHelpFlag(name) || name === 'help') {
    terminal.print(groupHelp(group, path));
    return name === undefined ? EXIT_USAGE : EXIT_OK;
  }
  const command = group.commands.find((candidate) => candidate.name === name);
  if (!command) {
    const names = group.commands.map((candidate) => candidate.name).join(', ');
    terminal.error(`${path}: expected one of ${names}, got "${name}"; see ${path} --help`);
    return EXIT_USAGE;
  }
  const deeper = `${path} ${name}`;
  if ('commands' in command) return runGroup(command, deeper, args, terminal);
  if (args.some(isHelpFlag)) {
    terminal.print(command.help);
    return EXIT_OK;
  }
  return runCommand(command, deeper, args, terminal);
}

function runCommand(
  command: Command,
  path: string,
  args: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const complain = (error: unknown): number => {
    if (!(error instanceof UsageError || error instanceof SluiceError)) throw error;
    terminal.error(`${path}: ${error.message}`);
    return EXIT_USAGE;
  };
  try {
    const code = command.run(args, terminal);
    return code instanceof Promise ? code.catch(complain) : code;
  } catch (error) {
    return complain(error);
  }
}

function groupHelp({ summary, commands }: CommandGroup, path: string): string {
  const rows = commands.map((command) => `  ${command.name.padEnd(10)} ${command.summary}`);
  return `${path}: ${summary}

usage: ${path} <command> [options]

${rows.join('\n')}

${path} <command> --help tells more.`;
}
