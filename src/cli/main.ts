#!/usr/bin/env node
/**
 * The executable `sluice`: runs a command with the arguments and the terminal of the process.
 *
 * SIGHUP asks a daemon to reload, and its default action ends the process. So it is held on the first line. Nothing is
 * imported before: every file that is loaded first would delay it.
 */

const isDaemon = process.argv[2] === 'serve';
let isHangupHeld = false;
const holdHangup = (): void => {
  isHangupHeld = true;
};
if (isDaemon) process.on('SIGHUP', holdHangup);

const releaseHangup = (): boolean => {
  process.off('SIGHUP', holdHangup);
  return isHangupHeld;
};

async function main(): Promise<void> {
  const { processTerminal } = await import('./framework/process-terminal.ts');
  const { run } = await import('./run.ts');
  const terminal = { ...processTerminal(isDaemon), releaseHangup };
  process.exitCode = await run(process.argv.slice(2), terminal);
}

void main();
