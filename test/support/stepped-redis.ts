/** A real Redis whose wall clock a test can step (`stepped-clock.c`). */

import { execFileSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cCompiler, type Service, startRedisBy } from './services.ts';

export interface SteppedRedis extends Service {
  /** Its clock is so far ahead of that of the machine; below 0: behind. */
  setAhead(ms: number): void;
}

const SOURCE = new URL('./stepped-clock.c', import.meta.url).pathname;

export async function startSteppedRedis(): Promise<SteppedRedis> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-clock-'));
  const library = join(folder, 'stepped-clock.so');
  const aheadFile = join(folder, 'ahead');
  execFileSync(cCompiler() ?? '', ['-shared', '-fPIC', '-O1', '-o', library, SOURCE]);
  writeFileSync(aheadFile, new Uint8Array(8));
  const file = openSync(aheadFile, 'r+');
  const setAhead = (ms: number): void => {
    writeSync(file, new BigInt64Array([BigInt(ms)]), 0, 8, 0);
  };
  const service = await startRedisBy([
    'env',
    `LD_PRELOAD=${library}`,
    `CLOCK_AHEAD_FILE=${aheadFile}`,
  ]);
  const { stop: stopServer } = service;
  const stop = async (): Promise<void> => {
    await stopServer();
    closeSync(file);
    rmSync(folder, { recursive: true, force: true });
  };
  return Object.assign(service, { setAhead, stop });
}
