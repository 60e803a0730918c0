/**
 * Attacks the key hash: a client that does not know the seed sends keys made to share a victim's limit.
 *
 *     victim      u s e r : 4 2 …
 *     attacker    one bit of one character changed, and bits of a later one that may cancel it
 *
 * Each round is a new limiter with a new seed and a burst of one. The victim's first check must be allowed.
 */

/** In a hash of multiplications and rotations, these cancel for one seed in twenty. */
const CANCELLING_MASKS = [0x0800, 0x1800, 0x3800, 0x7800, 0x2800];

/** Random pairs of masks tried in each round. */
const RANDOM_PAIRS = 100;

const flip = (key, at, mask) =>
  key.slice(0, at) + String.fromCharCode(key.charCodeAt(at) ^ mask) + key.slice(at + 1);

/** Keys that differ from the victim's in two characters. */
function* chosenKeys(victim, random) {
  for (let at = 0; at + 1 < victim.length; at++) {
    for (const mask of CANCELLING_MASKS) yield flip(flip(victim, at, 0x4000), at + 1, mask);
  }
  const draw = (below) => Math.floor(random() * below);
  for (let n = 0; n < RANDOM_PAIRS; n++) {
    const at = draw(victim.length - 1);
    const other = at + 1 + draw(victim.length - at - 1);
    yield flip(flip(victim, at, 1 << draw(15)), other, 1 + draw(0x7ffe));
  }
}

/** Lehmer's generator: the attack can be repeated. */
function lehmer(seed) {
  let state = 1 + (seed % 2147483646);
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483648;
  };
}

/**
 * `options.limiter` is the factory under attack; default: that of the built package.
 * Returns how many keys were sent, and in how many rounds the victim was refused.
 */
export async function attack({ rounds, seed, ...options }) {
  const { limiter } = options.limiter ? options : await import('../../../dist/index.js');
  const random = lehmer(seed);
  const counts = { rounds, keys: 0, refusedVictims: 0 };
  for (let round = 0; round < rounds; round++) {
    const api = limiter({ limit: { bucket: { rate: '1/h', burst: 1 } } });
    const victim = `user:${Math.floor(random() * 1e9)}@example.org`;
    for (const key of chosenKeys(victim, random)) {
      if (key === victim) continue;
      counts.keys++;
      api.check(key);
    }
    if (api.check(victim).verdict !== 'allow') counts.refusedVictims++;
  }
  return counts;
}
