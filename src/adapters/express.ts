/** Express hands on the requests and responses of `node:http`, so this is the middleware of `sluice/node`. */

export { type NodeRequest, type NodeResponse, rateLimit } from './node.ts';
