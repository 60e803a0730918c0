import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { folder } from '../../test/support/daemon.ts';
import { readText } from './config/file.ts';
import { Daemon } from './daemon.ts';

const place = folder();
afterAll(() => place.remove());

test('a state that is being saved while it is to be saved again is saved twice, whole', async () => {
  const load = () =>
    readText(
      'sluice.yaml',
      `{ listen: { line: '127.0.0.1:0', resp: off, http: off }, snapshot: ${join(place.path, 'state')} }`,
    );
  const loaded = load();
  if (!('config' in loaded)) throw new Error(loaded.problems.join());
  const said: string[] = [];
  const daemon = await Daemon.start(loaded.config, {
    log: (_, message) => said.push(message),
    load,
    version: '0.0.0-test',
  });
  await Promise.all([daemon.save(), daemon.save(), daemon.save()]);
  await daemon.stop();
  expect(said).toEqual(Array.from({ length: 4 }, () => 'snapshot written'));
});
