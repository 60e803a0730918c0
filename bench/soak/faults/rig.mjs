/**
 * What one run of a scenario consists of: servers, proxies, worker processes and their files; all end with it.
 *
 *     worker ──▶ proxy ──▶ server        faults are injected into proxies, servers (signals) and workers (signals)
 *        └──▶ file ──▶ checker
 */

import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { startCluster } from '../etcd/cluster.mjs';
import { startEtcd, startJetStream, startRedis } from '../server.mjs';
import { readCalls } from './checker.mjs';
import { startProxy } from './proxy.mjs';

const pathOf = (name) => fileURLToPath(new URL(name, import.meta.url));

/** A worker that has not exited so long after `close` hangs, and is killed. */
const EXIT_WITHIN_MS = 7000;
const REPLY_WITHIN_MS = 20_000;

const STARTERS = { redis: startRedis, nats: startJetStream, etcd: startEtcd };

export class Rig {
  #folder = mkdtempSync(join(tmpdir(), 'sluice-faults-'));
  #workers = [];
  #servers = [];
  #proxies = [];
  /** Of each worker: milliseconds from `close` to its exit, and its exit code. */
  exits = [];
  #isEnded = false;
  /** Also after an interruption no process and no record stays behind. */
  #clear = () => {
    for (const worker of this.#workers) worker.kill();
    for (const server of this.#servers) server.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  };

  constructor() {
    process.once('exit', this.#clear);
  }

  async server(kind) {
    const server = await STARTERS[kind]();
    this.#servers.push(server);
    if (this.#isEnded) await server.stop(); // a run that was given up must leave nothing behind
    return server;
  }

  /** One member of etcd, or three. */
  async etcd(size) {
    if (size === 1) {
      const server = await this.server('etcd');
      return { ...server, endpoints: [`http://127.0.0.1:${server.port}`] };
    }
    const cluster = await startCluster({ addressOf: () => '127.0.0.1', within: () => [] });
    this.#servers.push({ kill() {}, stop: cluster.stop }); // it ends its members on exit itself
    return cluster;
  }

  async proxy(port) {
    const proxy = await startProxy(port);
    this.#proxies.push(proxy);
    return proxy;
  }

  /** Redis behind a proxy. */
  async redis() {
    const server = await this.server('redis');
    return { server, proxy: await this.proxy(server.port) };
  }

  #newFile() {
    const file = join(this.#folder, `${this.#workers.length}.jsonl`);
    writeFileSync(file, '');
    return file;
  }

  /** A worker that is ready for commands. */
  async worker(settings) {
    const worker = new Worker(settings, this.#newFile());
    this.#workers.push(worker);
    await worker.ready;
    return worker;
  }

  /** A process without a channel to its parent; resolves with its exit code. */
  bareWorker(settings) {
    const file = this.#newFile();
    const argument = JSON.stringify({ ...settings, file });
    const child = spawn(process.execPath, [pathOf('awaiting-worker.mjs'), argument], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const exit = once(child, 'exit').then(([code]) => code);
    this.#workers.push({ file, kill: () => child.kill('SIGKILL') });
    return exit;
  }

  /** Closes all workers and waits until each has exited; a suspended one is resumed first. */
  async closeAll() {
    const open = this.#workers.filter(({ close, isEnding }) => close && !isEnding);
    this.exits.push(...(await Promise.all(open.map((worker) => worker.close()))));
  }

  /** What the workers wrote down; `from` in a call is the position of its worker. */
  calls() {
    return readCalls(this.#workers.map(({ file }) => file));
  }

  /** Ends whatever still runs. */
  async end() {
    this.#isEnded = true;
    process.off('exit', this.#clear);
    this.#clear();
    for (const proxy of this.#proxies) proxy.stop();
    for (const server of this.#servers) await server.stop();
  }
}

class Worker {
  file;
  isEnding = false;
  ready;
  #child;
  #exited;
  #replies = new Map();
  #commands = 0;

  constructor(settings, file) {
    this.file = file;
    const argument = JSON.stringify({ ...settings, file });
    this.#child = fork(pathOf('worker.mjs'), [argument]);
    this.#exited = once(this.#child, 'exit');
    this.ready = this.#reply(0);
    this.#child.on('message', ({ id, result }) => this.#replies.get(id)?.(result));
  }

  #reply(id) {
    const replied = new Promise((resolve) => this.#replies.set(id, resolve));
    const failed = this.#exited.then(([code]) => {
      throw new Error(`a worker ended with ${code} while a reply was expected`);
    });
    const late = sleep(REPLY_WITHIN_MS, undefined, { ref: false }).then(() => {
      throw new Error(`a worker did not reply within ${REPLY_WITHIN_MS} ms`);
    });
    const first = Promise.race([replied, failed, late]);
    first.catch(() => {}); // not all replies are awaited
    return first;
  }

  /** Resolves with the result of the command. */
  do(act, more = {}) {
    const id = ++this.#commands;
    this.#child.send({ id, act, ...more });
    return this.#reply(id);
  }

  pause() {
    this.#child.kill('SIGSTOP');
  }

  resume() {
    this.#child.kill('SIGCONT');
  }

  kill() {
    if (this.#child.exitCode === null && this.#child.signalCode === null)
      this.#child.kill('SIGKILL');
  }

  async close() {
    this.isEnding = true;
    this.resume();
    const since = performance.now();
    this.#child.send({ id: ++this.#commands, act: 'close' });
    const timer = setTimeout(() => this.kill(), EXIT_WITHIN_MS);
    const [code, signal] = await this.#exited;
    clearTimeout(timer);
    return { ms: signal ? Infinity : performance.now() - since, code };
  }
}
