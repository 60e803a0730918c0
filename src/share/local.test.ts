import { shareContract } from '../../test/support/share-contract.ts';
import { seededRandom } from '../random.ts';
import { LocalShare } from './local.ts';

shareContract('local', ({ policy, clock, keysMax }) => {
  return new LocalShare(policy, { clock, keysMax, random: seededRandom(7) });
});
