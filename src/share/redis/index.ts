/** The door of `sluice/redis`. */

export type { IoRedisLike, NodeRedisLike, RedisClient } from './client.ts';
export { type OnUnavailable, type RedisOptions, redis } from './redis.ts';
