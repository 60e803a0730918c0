export type { OnUnavailable } from '../../core/decision.ts';
export type { IoRedisLike, NodeRedisLike, RedisClient, UpstashLike } from './client.ts';
export { type RedisOptions, redis } from './options.ts';
