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

/** A library that hands on what every door makes: its declarations have to call all of it by name. */
const LIBRARY = `
import { type Decision, type LimiterOptions, limiter } from 'sluice';
import { type connect } from 'sluice/client';
import { etcd } from 'sluice/etcd';
import { throttleFetch } from 'sluice/fetch';
import { groups } from 'sluice/groups';
import { express, fastify, hono } from 'sluice/http';
import { peers } from 'sluice/peers';
import { fixedPool, memoryStore, pool } from 'sluice/pool';
import { redis } from 'sluice/redis';

declare const options: never;
export const byRedis = redis(options);
export const byEtcd = etcd(options);
export const byGroups = groups(options);
export const fleet = peers(options);
export const { peers: others, counts, transportCounts } = fleet.view();
export const parts = [pool(memoryStore(), options), fixedPool(3)];
export const shared = limiter({ limit: { bucket: { rate: 1 } }, share: byRedis });
export const middleware = [express(options), fastify(options), hono(options)] as const;
export const fetching = throttleFetch({ limiter: shared });

export function asked(either: LimiterOptions): Decision {
  // @ts-expect-error where it is not known who decides, the answer may be a promise
  return limiter(either).ask('x');
}
export const settledBy = (client: ReturnType<typeof connect>) => client.settle;
`;

mkdirSync(join(folder, 'node_modules'));
symlinkSync(resolve('.'), join(folder, 'node_modules', 'sluice'), 'junction');
writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');

/** What the compiler has to say to it; nothing if all is well. */
async function compile(file: string, source: string, ...more: readonly string[]): Promise<string> {
  writeFileSync(join(folder, file), source);
  const flags = ['--strict', '--target', 'es2022', '--module', 'nodenext', '--lib', 'es2022,dom'];
  const tsc = resolve('node_modules/typescript/bin/tsc');
  const { stdout } = await run(process.execPath, [tsc, ...flags, ...more, file], {
    cwd: folder,
  }).catch(({ stdout }) => ({ stdout }));
  return stdout;
}

test('compiles, decorates and runs in a project that only has the package', async () => {
  expect(await compile('program.ts', PROGRAM)).toBe('');
  const { stdout } = await run(process.execPath, ['program.js'], { cwd: folder });
  expect(stdout).toBe('got /a,got /b,DENIED 2 3 allow deny function\n');
}, 60_000);

test('what its doors make can be handed on by a library with declarations of its own', async () => {
  const node = ['--types', 'node', '--typeRoots', resolve('node_modules/@types')];
  expect(await compile('library.ts', LIBRARY, '--declaration', ...node)).toBe('');
}, 60_000);
