/**
 * The package as somebody else's TypeScript project sees it: types found through its exports, with
 * nothing but the compiler's own libraries, and decorators in the standard syntax.
 */

import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, expect, test } from 'vitest';

const run = promisify(execFile);
const folder = mkdtempSync(join(tmpdir(), 'sluice-consumer-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const PROGRAM = `
import { all, type Decision, DeniedError, limiter, throttle, throttled } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { VirtualClock } from 'sluice/testing';

const clock = new VirtualClock();

class Api {
  calls = 0;

  @throttled({ limit: { bucket: { rate: 1, burst: 2 } }, clock })
  get(path: string): string {
    this.calls++;
    return \`got \${path}\`;
  }
}

const api = new Api();
const said: string[] = [api.get('/a'), api.get('/b')];
try {
  api.get('/c');
} catch (error) {
  if (error instanceof DeniedError) said.push(error.code);
}

const add: (a: number, b: number) => number = throttle((a: number, b: number) => a + b, {
  limit: { spacing: { every: '6s' } },
});
const both = all([limiter({ limit: { adaptive: {} } }), limiter({ limit: { busy: {} } })]);
const decision: Decision = both.ask('x');
using permit = both.tryAcquire('x');
const fetching: typeof fetch = throttleFetch({ limit: { adaptive: {} } });
console.log(said.join(), api.calls, add(1, 2), decision.verdict, permit.verdict, typeof fetching);
`;

test('compiles, decorates and runs in a project that only has the package', async () => {
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
  writeFileSync(join(folder, 'program.ts'), PROGRAM);
  mkdirSync(join(folder, 'node_modules'));
  symlinkSync(resolve('.'), join(folder, 'node_modules', 'sluice'), 'junction');
  const flags = ['--strict', '--target', 'es2022', '--module', 'nodenext', '--lib', 'esnext,dom'];
  const tsc = resolve('node_modules/typescript/bin/tsc');
  const compiled = await run(process.execPath, [tsc, ...flags, 'program.ts'], {
    cwd: folder,
  }).catch(({ stdout }) => ({ stdout }));
  expect(compiled.stdout).toBe('');
  const { stdout } = await run(process.execPath, ['program.js'], { cwd: folder });
  expect(stdout).toBe('got /a,got /b,DENIED 2 3 allow deny function\n');
}, 60_000);
