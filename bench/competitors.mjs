/**
 * The limiters that are compared. Each creates a keyed limiter and gives a function that checks a key.
 *
 * The limit is never reached: on this path other libraries are fastest (a refusal in rate-limiter-flexible is a
 * rejected promise). `sync` functions return a decision, `async` ones are awaited.
 */

const KEYS = 1_100_000; // slightly more than the million in use
const PLENTY = 1e12;
const HOUR_MS = 3_600_000;

export const competitors = {
  sluice: {
    async make() {
      const { limiter } = await import('sluice');
      const limit = { bucket: { rate: '1/h', burst: PLENTY } };
      const api = limiter({ limit, maxKeys: KEYS });
      return { sync: (key) => api.check(key).verdict === 'allow' };
    },
  },
  'bare Map of numbers': {
    async make() {
      const counts = new Map();
      return {
        sync(key) {
          const count = (counts.get(key) ?? 0.5) + 1;
          counts.set(key, count);
          return count < PLENTY;
        },
      };
    },
  },
  'bare Map and a clock': {
    async make() {
      const full = new Map();
      return {
        sync(key) {
          const now = Date.now();
          const at = Math.max(full.get(key) ?? 0, now) + 0.001;
          full.set(key, at);
          return at < now + PLENTY;
        },
      };
    },
  },
  '@fastify/rate-limit store': {
    async make() {
      const { default: LocalStore } = await import('@fastify/rate-limit/store/LocalStore.js');
      const store = new LocalStore(false, false, KEYS);
      let allowed = false;
      const onCount = (_error, { current }) => {
        allowed = current <= PLENTY;
      };
      return {
        sync(key) {
          store.incr(key, onCount, HOUR_MS, PLENTY);
          return allowed;
        },
      };
    },
  },
  'limiter, one per key': {
    async make() {
      const { RateLimiter } = await import('limiter');
      const limiters = new Map();
      const options = { tokensPerInterval: PLENTY, interval: 'hour' };
      return {
        sync(key) {
          let own = limiters.get(key);
          if (own === undefined) {
            own = new RateLimiter(options);
            limiters.set(key, own);
          }
          return own.tryRemoveTokens(1);
        },
      };
    },
  },
  'express-rate-limit MemoryStore': {
    async make() {
      const { MemoryStore } = await import('express-rate-limit');
      const store = new MemoryStore();
      store.init({ windowMs: HOUR_MS });
      return { async: async (key) => (await store.increment(key)).totalHits <= PLENTY };
    },
  },
  'rate-limiter-flexible': {
    async make() {
      const { RateLimiterMemory } = await import('rate-limiter-flexible');
      const limiter = new RateLimiterMemory({ points: PLENTY, duration: 3600 });
      return { async: async (key) => (await limiter.consume(key)).remainingPoints >= 0 };
    },
  },
};
