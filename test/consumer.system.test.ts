import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
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
const results: string[] = [api.get('/a'), api.get('/b')];
try {
  api.get('/c');
} catch (error) {
  if (error instanceof DeniedError) results.push(error.code);
}

const add: (a: number, b: number) => number = throttle((a: number, b: number) => a + b, {
  limit: { spacing: { every: '6s' } },
});
const both = all([limiter({ limit: { adaptive: {} } }), limiter({ limit: { busy: {} } })]);
const decision: Decision = both.check('x', 1, { willSettle: true });
using permit = both.tryAcquire('x');
const fetching: typeof fetch = throttleFetch({ limit: { adaptive: {} } });
console.log(results.join(), api.calls, add(1, 2), decision.verdict, permit.verdict, typeof fetching);
`;

/** The decorators that NestJS and other frameworks still use. */
const LEGACY = `
import { DeniedError, throttled } from 'sluice';

class Api {
  readonly verb = 'got';

  @throttled({ limit: { bucket: { rate: 1, burst: 1 } } })
  async get(path: string): Promise<string> {
    return \`\${this.verb} \${path}\`;
  }
}

const api = new Api();
const results: string[] = [await api.get('/a')];
await api.get('/b').catch((error: unknown) => error instanceof DeniedError && results.push(error.code));
console.log(results.join());
`;

/** Options that are undefined are absent, also where the compiler keeps the two apart. */
const UNDEFINED = `
import { all, limiter, type Limit, throttle } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { requestLimiter } from 'sluice/http';

function maybe<T>(value: T): T | undefined {
  return value === undefined ? value : undefined;
}
const limits: Limit[] = [
  { bucket: { rate: 1, burst: maybe(1) } },
  { spacing: { every: '6s', reserve: maybe(1) } },
  { adaptive: { rule: maybe<'aimd'>('aimd'), alpha: maybe(0.1), partitions: undefined } },
  { busy: { max: maybe(1) } },
  { lockout: { after: 3, lock: maybe<'1m'>('1m'), on: undefined } },
];
const queue = { max: maybe(1), order: undefined, keepAlive: maybe(true) };
const rest = { name: maybe('x'), backend: undefined, permitTimeout: undefined, clock: undefined, maxKeys: undefined };
const limiters = limits.map((limit) => limiter({ limit, queue, ...rest }));
const verdict = all(limiters, { name: undefined }).tryAcquire('x', 1, { id: undefined, partition: undefined }).verdict;
const add = throttle((a: number) => a + 1, { limit: limits[0]!, key: undefined, wait: undefined, retry: undefined });
throttleFetch({ limit: limits[0]!, wait: undefined, key: undefined });
requestLimiter({ limit: limits[0]!, name: undefined, wait: undefined, cost: undefined });
console.log(verdict, add(1));
`;

/** One mistake each, and a part of the only message. */
const MISTAKES: readonly (readonly [mistake: string, call: string, message: string])[] = [
  ['an option of the wrong type', 'limiter({ ...ONE, maxKeys: "9" })', "'number"],
  ['a misspelt option', 'limiter({ ...ONE, nmae: "x" })', "'nmae' does not exist"],
  ['no limit', 'limiter({ name: "x" })', "'limit' is missing"],
  ['throttle: wrong type', 'throttle(add, { ...ONE, maxKeys: "9" })', "'number"],
  ['throttle: misspelt', 'throttle(add, { ...ONE, nmae: "x" })', "'nmae' does not exist"],
  ['throttle: misspelt value', 'throttle(add, { ...ONE, onDeny: "skp" })', 'mean \'"skip"\'?'],
  ['throttle: no limit', 'throttle(add, { name: "x" })', "'limit' is missing"],
  ['throttle: wait, not async', 'throttle(add, { ...ONE, wait: true })', 'NeedsAsyncFunction'],
  ['throttle: remote, not async', 'throttle(add, { limiter: far })', 'NeedsAsyncFunction'],
  ['throttle: wrong argument', 'throttle(add, { ...ONE, key: (a: string) => a })', "'number'"],
];

const MISTAKEN = `
import { limiter, type RemoteLimiter, throttle } from 'sluice';
const ONE = { limit: { concurrency: 1 } };
const add = (a: number, b: number): number => a + b;
declare const far: RemoteLimiter;
`;

/** A library that re-exports what every entry creates: its declarations must be able to name all types. */
const LIBRARY = `
import { type Decision, type LimiterOptions, limiter } from 'sluice';
import { type connect } from 'sluice/client';
import { durableObjects, SluiceObject } from 'sluice/durable-objects';
import { etcd } from 'sluice/etcd';
import { throttleFetch } from 'sluice/fetch';
import { groups } from 'sluice/groups';
import { rateLimit as express } from 'sluice/express';
import { rateLimit as fastify } from 'sluice/fastify';
import { rateLimit as hono } from 'sluice/hono';
import { requestLimiter } from 'sluice/http';
import { rateLimit as node } from 'sluice/node';
import { peers } from 'sluice/peers';
import { fixedPool, memoryStore, pool } from 'sluice/pool';
import { redis } from 'sluice/redis';

declare const options: never;
export const byRedis = redis(options);
export const byEtcd = etcd(options);
export const byObjects = durableObjects(options);
export class Limits extends SluiceObject {}
export const byGroups = groups(options);
export const fleet = peers(options);
export const { peers: others, counts, transportCounts } = fleet.view();
export const parts = [pool(memoryStore(), options), fixedPool(3)];
export const shared = limiter({ limit: { bucket: { rate: 1 } }, backend: byRedis });
export const middleware = [express(options), fastify(options), hono(options), node(options)] as const;
export const limitedRequests = requestLimiter(options);
export const fetching = throttleFetch({ limiter: shared });

export function checked(either: LimiterOptions): Decision {
  // @ts-expect-error with an unknown backend the result may be a promise
  return limiter(either).check('x');
}
export const settledBy = (client: ReturnType<typeof connect>) => client.settle;
`;

mkdirSync(join(folder, 'node_modules'));
symlinkSync(resolve('.'), join(folder, 'node_modules', 'sluice'), 'junction');
writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');

/** The output of the compiler; empty without errors. */
async function compile(file: string, source: string, ...more: readonly string[]): Promise<string> {
  writeFileSync(join(folder, file), source);
  const flags = ['--strict', '--target', 'es2022', '--module', 'nodenext', '--lib', 'es2022,dom'];
  const tsc = resolve('node_modules/typescript/bin/tsc');
  const { stdout } = await run(process.execPath, [tsc, ...flags, ...more, file], {
    cwd: folder,
  }).catch(({ stdout }) => ({ stdout }));
  return stdout;
}

test('consumer: a project with only the package compiles, decorates and runs', async () => {
  expect(await compile('program.ts', PROGRAM)).toBe('');
  const { stdout } = await run(process.execPath, ['program.js'], { cwd: folder });
  expect(stdout).toBe('got /a,got /b,DENIED 2 3 allow deny function\n');
}, 60_000);

test('consumer: @throttled works with experimentalDecorators', async () => {
  expect(await compile('legacy.ts', LEGACY, '--experimentalDecorators')).toBe('');
  const { stdout } = await run(process.execPath, ['legacy.js'], { cwd: folder });
  expect(stdout).toBe('got /a,DENIED\n');
}, 60_000);

test('consumer: an undefined option is an absent one, with exactOptionalPropertyTypes', async () => {
  expect(await compile('absent.ts', UNDEFINED, '--exactOptionalPropertyTypes')).toBe('');
  const { stdout } = await run(process.execPath, ['absent.js'], { cwd: folder });
  expect(stdout).toBe('allow 2\n');
}, 60_000);

test('consumer: a mistake in the options of limiter() or throttle() has one message, which names it', async () => {
  const source = MISTAKEN + MISTAKES.map(([, call]) => `${call};`).join('\n');
  const output = await compile('mistakes.ts', source);
  expect(output).not.toContain('overload');
  const first = MISTAKEN.split('\n').length;
  const messages = output.split(/^(?=mistakes\.ts)/m); // a message may have several lines
  for (const [n, [mistake, , message]] of MISTAKES.entries()) {
    const own = messages.filter((text) => text.startsWith(`mistakes.ts(${n + first},`));
    expect(own, mistake).toHaveLength(1);
    expect(own[0], mistake).toContain(message);
  }
}, 60_000);

test('consumer: a library can re-export everything with declarations', async () => {
  const node = ['--types', 'node', '--typeRoots', resolve('node_modules/@types')];
  expect(await compile('library.ts', LIBRARY, '--declaration', ...node)).toBe('');
}, 60_000);

test('consumer: the first JavaScript of the README compiles as strict TypeScript', async () => {
  const blocks = [...readFileSync('README.md', 'utf8').matchAll(/```js\n(.*?)```/gs)];
  for (const name of ['express', '@types', 'redis', '@redis'])
    symlinkSync(resolve('node_modules', name), join(folder, 'node_modules', name), 'junction');
  for (const [n, [, source]] of blocks.slice(0, 2).entries())
    expect(await compile(`readme-${n}.mts`, source, '--noEmit', '--types', 'node')).toBe('');
}, 60_000);
