import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { loadInThread } from './load-thread.ts';

test('reload: a pipe in place of the file is refused at once', async () => {
  const folder = createTempDir();
  onTestFinished(folder.remove);
  const pipe = join(folder.path, 'sluice.yaml');
  execFileSync('mkfifo', [pipe]);
  const problems = [`cannot read ${pipe}: not a regular file`];
  expect(await loadInThread(pipe, [], [])).toEqual({ problems });
});
