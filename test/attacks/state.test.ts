import { describe, expect, test } from 'vitest';
import { attack as attackThrottle } from '../../bench/soak/attacks/cl-throttle.mjs';
import { attack as attackClient } from '../../bench/soak/attacks/client.mjs';
import { attack as attackPermits } from '../../bench/soak/attacks/permits.mjs';

describe('attacks on state', () => {
  test('permits of cost 0, of long keys and with absurd use: limits hold', async () => {
    const { holds, inFlight, settled } = await attackPermits({ rounds: 3, seed: 1 });
    expect(holds).toBeGreaterThan(3000);
    expect([inFlight, settled]).toEqual([15, 9]);
  });

  test('CL.THROTTLE with chosen terms: fresh keys are served, also after a restart', async () => {
    const { fresh, rejected, restarts } = await attackThrottle({ rounds: 3, seed: 1 });
    expect([fresh, restarts]).toEqual([150, 1]);
    expect(rejected).toBeGreaterThan(1000); // terms beyond the bound
  });

  test('requests that a daemon rejects: a client that fails open denies them', async () => {
    const { rejected, allowed, failedOpen } = await attackClient({ rounds: 3, seed: 1 });
    expect([rejected, allowed, failedOpen]).toEqual([51, 9, 1]);
  });
});
