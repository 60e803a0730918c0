import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { memoryStore } from './memory-store.ts';

poolStoreContract('memory', { isServer: false }, async () => {
  const clock = new VirtualClock(1_000_000);
  const store = memoryStore(clock);
  return {
    clock,
    advance: (ms) => clock.advanceAsync(ms),
    store: () => store,
    stop: async () => {},
  };
});
