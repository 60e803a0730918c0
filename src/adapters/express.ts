/**
 * `sluice/express`: rate limiting middleware for Express.
 *
 *     import { rateLimit } from 'sluice/express';
 *     app.use(rateLimit({ limit: { bucket: { rate: '10/s', burst: 20 } } }));
 *
 * Express hands on the requests and responses of `node:http`, so this is the middleware of `sluice/node`.
 */

export { type NodeRequest, type NodeResponse, rateLimit } from './node.ts';
