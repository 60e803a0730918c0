#!/usr/bin/env node
/** The executable `sluice`: runs a command with the arguments and the terminal of the process. */

import { holdHangup } from './framework/hangup.ts';

const isDaemon = process.argv[2] === 'serve';
if (isDaemon) holdHangup();

async function main(): Promise<void> {
  // Loaded only now: that takes much longer than all before it.
  const { processTerminal } = await import('./framework/process-terminal.ts');
  const { run } = await import('./run.ts');
  process.exitCode = await run(process.argv.slice(2), processTerminal(isDaemon));
}

void main();
