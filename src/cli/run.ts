/** Finds the command on the command line and runs it. Every usage error prints one line. */

import { SluiceError } from '../core/errors.ts';
import { BACKENDS, type BackendModule } from '../daemon/backends/registry.ts';
import { backendPageCommand } from './backend-page.ts';
import { check } from './check.ts';
import { configCommands } from './config.ts';
import { controlCommands } from './control.ts';
import { explainCommand } from './explain.ts';
import {
  type Command,
  CommandError,
  type CommandGroup,
  EXIT_CANNOT_RUN,
  EXIT_OK,
  type Terminal,
} from './framework/command.ts';
import { reloadCommand } from './reload.ts';
import { planCommand } from './replay/plan.ts';
import { replayCommand } from './replay/replay.ts';
import { report } from './report.ts';
import { serveCommand } from './serve.ts';
import { simulate } from './simulate/simulate.ts';
import { top } from './top.ts';
import { trace } from './trace.ts';
import { why } from './why.ts';

const NAME = 'sluice';

const rootOf = (modules: readonly BackendModule[]): CommandGroup => ({
  name: NAME,
  summary: 'a rate and concurrency limiter',
  commands: [
    serveCommand(modules),
    check,
    report,
    explainCommand(modules),
    top,
    why,
    configCommands(modules),
    reloadCommand(modules),
    ...modules.flatMap(({ name, page }) => (page ? [backendPageCommand(name, page)] : [])),
    ...controlCommands,
    trace,
    replayCommand(modules),
    planCommand(modules),
    simulate,
  ],
});

export function run(
  words: readonly string[],
  terminal: Terminal,
  modules: readonly BackendModule[] = BACKENDS,
): number | Promise<number> {
  if (words[0] === '--version') {
    terminal.print(terminal.version);
    return EXIT_OK;
  }
  return runGroup(rootOf(modules), NAME, words, terminal);
}

const isHelpFlag = (word: string): boolean => word === '--help' || word === '-h';

function runGroup(
  group: CommandGroup,
  path: string,
  words: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const [name, ...args] = words;
  if (name === undefined || isHelpFlag(name) || name === 'help') {
    terminal.print(groupHelp(group, path));
    return name === undefined ? EXIT_CANNOT_RUN : EXIT_OK;
  }
  const command = group.commands.find((candidate) => candidate.name === name);
  if (!command && group.fileCommand && isFileOrFlag(name))
    return runOrHelp(group.fileCommand, path, words, terminal);
  if (!command) {
    const names = group.commands.map((candidate) => candidate.name).join(', ');
    terminal.error(`${path}: expected one of ${names}, got "${name}"; see ${path} --help`);
    return EXIT_CANNOT_RUN;
  }
  const deeper = `${path} ${name}`;
  if ('commands' in command) return runGroup(command, deeper, args, terminal);
  return runOrHelp(command, deeper, args, terminal);
}

const isFileOrFlag = (word: string): boolean => /^-|[./\\]/.test(word);

function runOrHelp(
  command: Command,
  path: string,
  args: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  if (!args.some(isHelpFlag)) return runCommand(command, path, args, terminal);
  terminal.print(command.help);
  return EXIT_OK;
}

function runCommand(
  command: Command,
  path: string,
  args: readonly string[],
  terminal: Terminal,
): number | Promise<number> {
  const printError = (error: unknown): number => {
    if (!(error instanceof CommandError || error instanceof SluiceError)) throw error;
    terminal.error(`${path}: ${error.message}`);
    return EXIT_CANNOT_RUN;
  };
  try {
    const code = command.run(args, terminal);
    return code instanceof Promise ? code.catch(printError) : code;
  } catch (error) {
    return printError(error);
  }
}

function groupHelp({ summary, commands, fileCommand }: CommandGroup, path: string): string {
  const listed = fileCommand ? [fileCommand, ...commands] : commands;
  const rows = listed.map((command) => `  ${command.name.padEnd(10)} ${command.summary}`);
  return `${path}: ${summary}

usage: ${path} <command> [options]

${rows.join('\n')}

${path} <command> --help describes a command.`;
}
