/** The door of `sluice/redis`. */

export type { OnUnavailable } from '../../decision.ts';
export type { IoRedisLike, NodeRedisLike, RedisClient } from './client.ts';
export { type RedisOptions, redis } from './redis.ts';
