/** The door of `sluice/redis`. */

export type { OnUnavailable } from '../../core/decision.ts';
export { type RedisOptions, redis } from './backend.ts';
export type { IoRedisLike, NodeRedisLike, RedisClient } from './client.ts';
