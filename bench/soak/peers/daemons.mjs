/** The daemons of a fleet as processes, each in its place of a network, and what they tell of themselves. */

import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { startDaemon } from '../../daemon/process.mjs';

const MEET_WITHIN_MS = 15_000;
const ANSWERS_WITHIN_MS = 2000;

/** Starts them all, and waits until everybody knows everybody. */
export async function startDaemons(network, nodes, { rate, burst }) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-'));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  const file = (n, name) => join(folder, `${n}.${name}`);
  const agent = new Agent({ keepAlive: true });
  const running = [];

  const start = async (n) => {
    const log = openSync(file(n, 'log'), 'a');
    const setting = { within: network.within(n), log };
    try {
      running[n] = await startDaemon(['--config', file(n, 'yaml')], setting);
    } catch (error) {
      throw new Error(`node ${n}: ${error.message}${readFileSync(file(n, 'log'), 'utf8')}`);
    } finally {
      closeSync(log);
    }
  };
  const stop = async (n, signal) => {
    const daemon = running[n];
    running[n] = undefined;
    await daemon?.stop(signal);
  };
  const page = (n, path) =>
    running[n] ? pageAt(agent, file(n, 'http'), path) : Promise.resolve(undefined);
  const everybody = (path) => Promise.all(Array.from({ length: nodes }, (_, n) => page(n, path)));

  for (let n = 0; n < nodes; n++) {
    writeFileSync(
      file(n, 'yaml'),
      `peers: { udp: ${network.udp(n)}, key: a secret of the whole fleet, name: n${n} }
listen: { line: ${file(n, 'line')}, resp: off, http: ${file(n, 'http')} }
limits: { api: { bucket: { rate: ${rate}/s, burst: ${burst} } } }
`,
    );
  }
  await Promise.all(Array.from({ length: nodes }, (_, n) => start(n)));
  const deadline = performance.now() + MEET_WITHIN_MS;
  const haveMet = (views) => views.every((view) => view?.peers.length === nodes - 1);
  while (!haveMet(await everybody('/peers'))) {
    if (performance.now() > deadline) throw new Error('they did not all meet in time');
    await sleep(50);
  }
  return {
    start,
    stop,
    lines: Array.from({ length: nodes }, (_, n) => file(n, 'line')),
    /** What each knows of the fleet; nothing for one that does not answer. */
    views: () => everybody('/peers'),
    /** What each has left for a key. */
    remaining: async (key) =>
      (await everybody(`/inspect?key=${key}`)).map((told) => told?.limits[0].remaining),
    async stopAll() {
      agent.destroy();
      await Promise.all(running.map((_, n) => stop(n, 'SIGKILL')));
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Nothing if it does not answer. */
function pageAt(agent, socketPath, path) {
  return new Promise((resolve) => {
    const request = get({ socketPath, path, agent, timeout: ANSWERS_WITHIN_MS }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
      });
      response.on('end', () => resolve(JSON.parse(text)));
      response.on('error', () => resolve(undefined));
    });
    request.on('timeout', () => request.destroy());
    request.on('error', () => resolve(undefined));
  });
}
