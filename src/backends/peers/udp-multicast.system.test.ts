import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { hasNamespaces, startNamespace } from '../../../test/support/services.ts';

// Multicast reaches beyond this machine, so it runs in a network namespace.
test.skipIf(!hasNamespaces())(
  'UDP multicast: transport contract in a network namespace',
  {
    timeout: 90_000,
  },
  async () => {
    const space = startNamespace('10.77.0.1/24');
    try {
      const config = 'test/support/multicast/vitest.config.ts';
      const vitest = ['node_modules/vitest/vitest.mjs', 'run', '--config', config];
      const [command, args] = space.run(process.execPath, ...vitest, '--reporter=verbose');
      const { stdout } = await promisify(execFile)(command, args, { timeout: 80_000 });
      expect(stdout).toMatch(/UDP to a group/);
      expect(stdout).toMatch(/UDP to a group on loopback/);
      expect(stdout).toMatch(/UDP to a group of one link/);
    } catch (error) {
      const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string };
      throw new Error(`${error}\n${stdout}\n${stderr}`);
    } finally {
      space.stop();
    }
  },
);
