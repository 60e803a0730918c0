/** A reload of a daemon whose limits are in a server: with other numbers, what was consumed stays consumed. */

import { expect } from 'vitest';
import {
  countAllowed,
  type createTempDir,
  type daemonFixture,
  EPHEMERAL_PORTS,
  waitUntil,
} from './daemon.ts';

/** `backend` is the option of the limits that names the server. */
export async function expectReloadKeepsConsumption(
  fixture: ReturnType<typeof daemonFixture>,
  folder: ReturnType<typeof createTempDir>,
  backend: string,
): Promise<void> {
  const text = (spacing: string, window: string, bucket: string): string => `
limits:
  slow: { spacing: { every: ${spacing} }, match: 'slow:*', ${backend} }
  rolling: { window: ${window}, match: 'rolling:*', ${backend} }
  burst: { bucket: ${bucket}, match: 'burst:*', ${backend} }
`;
  const before = text('1h', '{ limit: 5, per: 1h }', '{ rate: 1/h, burst: 5 }');
  const config = folder.file('numbers.yaml', before);
  const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
  await waitUntil(async () => (await countAllowed(daemon, 'slow:a', 1)) === 1);
  expect(await countAllowed(daemon, 'rolling:a', 3)).toBe(3);
  expect(await countAllowed(daemon, 'burst:a', 4)).toBe(4);
  folder.file('numbers.yaml', text('3h', '{ limit: 4, per: 2h }', '{ rate: 1/h, burst: 6 }'));
  const http = `http://${daemon.addresses.http[0]}`;
  const reloaded = await fetch(`${http}/reload`, { method: 'POST' });
  expect(await reloaded.json()).toMatchObject({ ok: true, limits: 3, kept: 3 });
  const refused = await fetch(`${http}/check?key=slow:a`);
  expect(Number(refused.headers.get('Retry-After'))).toBeGreaterThan(2 * 3600); // by the old interval: less than 1 h
  expect(await countAllowed(daemon, 'rolling:a', 9)).toBe(1); // of a fresh window: 4
  expect(await countAllowed(daemon, 'burst:a', 9)).toBe(2);
}
