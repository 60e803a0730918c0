/** The daemons of a fleet as processes, each in its network namespace, and their admin pages. */

import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { startDaemon } from '../../daemon/process.mjs';

const PEERS_WITHIN_MS = 15_000;
const REPLY_TIMEOUT_MS = 2000;

/** Starts all daemons and waits until they are peers. */
export async function startDaemons(network, nodes, { rate, burst }) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-'));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  const file = (n, name) => join(folder, `${n}.${name}`);
  const agent = new Agent({ keepAlive: true });
  const running = [];

  const start = async (n) => {
    const log = openSync(file(n, 'log'), 'a');
    const options = { within: network.within(n), log };
    try {
      running[n] = await startDaemon(['--config', file(n, 'yaml')], options);
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
  const allPages = (path) => Promise.all(Array.from({ length: nodes }, (_, n) => page(n, path)));

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
  const deadline = performance.now() + PEERS_WITHIN_MS;
  const arePeers = (views) => views.every((view) => view?.peers.length === nodes - 1);
  while (!arePeers(await allPages('/peers'))) {
    if (performance.now() > deadline)
      throw new Error(`expected ${nodes - 1} peers per daemon within ${PEERS_WITHIN_MS} ms`);
    await sleep(50);
  }
  return {
    start,
    stop,
    lines: Array.from({ length: nodes }, (_, n) => file(n, 'line')),
    /** Each daemon's view of the fleet; undefined if it does not reply. */
    views: () => allPages('/peers'),
    /** Units remaining of a key, by daemon. */
    remaining: async (key) =>
      (await allPages(`/inspect?key=${key}`)).map((view) => view?.limits[0].remaining),
    async stopAll() {
      agent.destroy();
      await Promise.all(running.map((_, n) => stop(n, 'SIGKILL')));
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Undefined if there is no reply. */
function pageAt(agent, socketPath, path) {
  return new Promise((resolve) => {
    const request = get({ socketPath, path, agent, timeout: REPLY_TIMEOUT_MS }, (response) => {
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
