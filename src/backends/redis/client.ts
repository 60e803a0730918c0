/**
 * Adapters for Redis clients, which differ in the form of commands and in how a cluster finds its node. Only a
 * subscriber opens a connection, a duplicate of the caller's. Upstash's client uses HTTP and cannot subscribe.
 */

import { type Millis, schedule, systemClock } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { type ConnectableClient, connectClient } from '../connections/node-redis-connection.ts';
import type { ReplyValue } from './reply.ts';

export type ScriptReply = readonly ReplyValue[];

export interface RedisConnection {
  /** The caller's client: limits with equal clients are on the same servers. */
  readonly client: unknown;
  /** On Cloudflare Workers: lets a call finish after its request has ended. */
  readonly waitUntil?: WaitUntil | undefined;
  /** True for a cluster: a call may only access keys of one hash slot. */
  readonly isCluster: boolean;
  /** Runs a script by its digest. Its source is sent with the first call, and when Redis does not know it. */
  run(script: string, keys: readonly string[], args: readonly string[]): Promise<ScriptReply>;
  /** Lists keys that match a glob pattern, page by page, on every node. `call` bounds the duration of each call. */
  scan(pattern: string, call: BoundedCall): AsyncIterable<readonly string[]>;
}

export type WaitUntil = (work: Promise<unknown>) => void;

type BoundedCall = <T>(reply: Promise<T>) => Promise<T>;

/** A dedicated connection for messages: a subscribed connection can run no other commands. */
export interface Subscriber {
  subscribe(channel: string, onMessage: (message: string) => void): Promise<void>;
  /** `subscribe` for binary messages. */
  subscribeBytes(channel: string, onMessage: (message: Uint8Array) => void): Promise<void>;
  stop(): Promise<void>;
}

/** The used part of node-redis: `createClient()`, `createCluster()` and similar. */
export interface NodeRedisLike {
  sendCommand(...args: never[]): Promise<unknown>;
  /** A function; its type in version 4 is not assignable to a common type. */
  readonly evalSha: object;
  withCommandOptions?(options: object): unknown;
}

/** The used part of ioredis: `new Redis()` and `new Redis.Cluster()`. */
export interface IoRedisLike {
  readonly isCluster?: boolean;
  script(...args: never[]): Promise<unknown>;
  evalsha(...args: never[]): Promise<unknown>;
  eval(...args: never[]): Promise<unknown>;
}

/** The used part of @upstash/redis: `new Redis()`, which sends commands by HTTP. */
export interface UpstashLike {
  scriptLoad(...args: never[]): Promise<unknown>;
  evalsha(...args: never[]): Promise<unknown>;
  eval(...args: never[]): Promise<unknown>;
  scan(...args: never[]): Promise<unknown>;
}

/** A client of node-redis (4 or later) or ioredis, for one server or a cluster, or of @upstash/redis. */
export type RedisClient = NodeRedisLike | IoRedisLike | UpstashLike;

export const EXPECTED_CLIENT = 'a client of node-redis, ioredis or @upstash/redis';

/** Redis does not know a script after a restart, a flush or a failover. Upstash's client adds a prefix to the error. */
const isNoScriptError = (error: unknown): boolean =>
  error instanceof Error && /\bNOSCRIPT\b/.test(error.message);

/** Converts a reply: a client may be configured to return bytes. The first value is always a string. */
function normalizeReply(reply: unknown): ScriptReply {
  const values = reply as ScriptReply;
  if (typeof values[0] === 'string') return values;
  return values.map((value) => (typeof value === 'number' ? value : String(value)));
}

type SendToNode = (words: readonly string[]) => Promise<unknown>;

interface ClientAdapter {
  readonly isCluster: boolean;
  /** The prefix that the client itself adds to every key. */
  readonly keyPrefix: string;
  nodes(): Promise<readonly SendToNode[]>;
  load(script: string): Promise<string>;
  run(
    command: 'EVALSHA' | 'EVAL',
    script: string,
    keys: readonly string[],
    args: readonly string[],
  ): Promise<unknown>;
}

export function connectionOf(client: unknown, waitUntil?: WaitUntil): RedisConnection {
  const adapter = adapterOf(client);
  const digests = new Map<string, string>();
  const load = async (script: string): Promise<void> => {
    digests.set(script, await adapter.load(script));
  };
  return {
    client,
    waitUntil,
    isCluster: adapter.isCluster,
    async run(script, keys, args) {
      const digest = digests.get(script);
      if (digest === undefined) {
        // Both run at once, so the first call costs one round trip like every other.
        const loaded = load(script);
        const [reply] = await Promise.all([adapter.run('EVAL', script, keys, args), loaded]);
        return normalizeReply(reply);
      }
      try {
        return normalizeReply(await adapter.run('EVALSHA', digest, keys, args));
      } catch (error) {
        if (!isNoScriptError(error)) throw error;
        return normalizeReply(await adapter.run('EVAL', script, keys, args));
      }
    },
    async *scan(pattern, call) {
      const { keyPrefix } = adapter;
      const match = escapeGlob(keyPrefix) + pattern;
      for (const send of await call(adapter.nodes())) {
        let cursor = '0';
        do {
          const words = ['SCAN', cursor, 'MATCH', match, 'COUNT', String(SCAN_COUNT)];
          const [next, keys] = (await call(send(words))) as [unknown, readonly unknown[]];
          cursor = String(next);
          if (keys.length > 0) yield keys.map((key) => String(key).slice(keyPrefix.length));
        } while (cursor !== '0');
      }
    },
  };
}

/** Number of keys that Redis visits per SCAN call. */
const SCAN_COUNT = 512;

/** Escapes a text for a glob pattern of Redis. */
export const escapeGlob = (text: string): string => text.replace(/[\\*?[\]^-]/g, '\\$&');

function adapterOf(client: unknown): ClientAdapter {
  if (typeof client === 'object' && client !== null) {
    const methods = client as Record<string, unknown>;
    if (isUpstash(client)) return upstashAdapter(client);
    if (typeof methods.evalsha === 'function') return ioRedisAdapter(client as IoRedisCommands);
    if (typeof methods.evalSha === 'function') return nodeRedisAdapter(client as NodeRedisCommands);
  }
  throw new ConfigError('client', EXPECTED_CLIENT, client);
}

interface UpstashCommands {
  scriptLoad(script: string): Promise<unknown>;
  evalsha(digest: string, keys: readonly string[], args: readonly string[]): Promise<unknown>;
  eval(script: string, keys: readonly string[], args: readonly string[]): Promise<unknown>;
  scan(cursor: string, options: { match: string; count: number }): Promise<unknown>;
}

/** True for Upstash's client: only it has both spellings. */
const isUpstash = (client: object): client is UpstashCommands => {
  const { scriptLoad, evalsha } = client as Partial<UpstashCommands>;
  return typeof scriptLoad === 'function' && typeof evalsha === 'function';
};

const upstashAdapter = (client: UpstashCommands): ClientAdapter => ({
  isCluster: false,
  keyPrefix: '',
  nodes: async () => [
    ([, cursor, , match, , count]): Promise<unknown> =>
      client.scan(cursor, { match, count: Number(count) }),
  ],
  load: async (script) => String(await client.scriptLoad(script)),
  run: (command, script, keys, args) =>
    command === 'EVALSHA' ? client.evalsha(script, keys, args) : client.eval(script, keys, args),
});

interface IoRedisCommands {
  readonly isCluster?: boolean;
  readonly options?: { readonly keyPrefix?: string };
  nodes?(role: 'master'): readonly IoRedisCommands[];
  call(...words: string[]): Promise<unknown>;
  script(subcommand: 'LOAD', script: string): Promise<unknown>;
  evalsha(digest: string, keys: number, ...rest: string[]): Promise<unknown>;
  eval(script: string, keys: number, ...rest: string[]): Promise<unknown>;
}

const ioRedisAdapter = (client: IoRedisCommands): ClientAdapter => ({
  isCluster: client.isCluster === true,
  keyPrefix: client.options?.keyPrefix ?? '',
  nodes: async () =>
    (client.nodes?.('master') ?? [client]).map(
      (node) =>
        (words): Promise<unknown> =>
          node.call(...words),
    ),
  load: async (script) => String(await client.script('LOAD', script)),
  run: (command, script, keys, args) =>
    command === 'EVALSHA'
      ? client.evalsha(script, keys.length, ...keys, ...args)
      : client.eval(script, keys.length, ...keys, ...args),
});

interface NodeRedisCommands {
  /** Present on cluster clients only. */
  readonly slots?: unknown;
  readonly masters?: readonly unknown[];
  nodeClient?(master: unknown): NodeRedisCommands | Promise<NodeRedisCommands>;
  sendCommand(...args: unknown[]): Promise<unknown>;
  withCommandOptions?(options: object): NodeRedisCommands;
}

function nodeRedisAdapter(client: NodeRedisCommands): ClientAdapter {
  const isCluster = client.slots !== undefined && client.masters !== undefined;
  // The batcher has its own deadline; a client timeout would create an AbortSignal for every command.
  const plain = isCluster
    ? client
    : (client.withCommandOptions?.({ timeout: undefined }) ?? client);
  const send = (key: string | undefined, command: readonly string[]): Promise<unknown> =>
    isCluster ? plain.sendCommand(key, false, command) : plain.sendCommand(command);
  return {
    isCluster,
    keyPrefix: '',
    async nodes() {
      const { masters = [], nodeClient } = client;
      if (!isCluster || !nodeClient) return [(words) => plain.sendCommand(words)];
      const nodes = await Promise.all(masters.map((master) => nodeClient.call(client, master)));
      return nodes.map((node) => (words) => node.sendCommand(words));
    },
    load: async (script) => String(await send(undefined, ['SCRIPT', 'LOAD', script])),
    run: (command, script, keys, args) =>
      send(keys[0], [command, script, String(keys.length), ...keys, ...args]),
  };
}

/**
 * Opens a second connection with the options of the caller's client, on the first subscription. @throws {ConfigError}
 * for a client without connections.
 */
export function createSubscriber(client: RedisClient): Subscriber {
  if (isUpstash(client)) {
    const expected = 'a client of node-redis or ioredis: HTTP cannot deliver messages';
    throw new ConfigError('client', expected, '@upstash/redis'); // the client is a proxy, which prints as nothing
  }
  const { evalsha } = client as { evalsha?: unknown };
  return typeof evalsha === 'function'
    ? ioRedisSubscriber(client as unknown as IoRedisDuplicate)
    : nodeRedisSubscriber(client as unknown as NodeRedisDuplicate);
}

interface IoRedisDuplicate {
  readonly isCluster?: boolean;
  readonly status?: string;
  /** Takes options; for a cluster, nodes first and then options. */
  duplicate(...overrides: object[]): IoRedisDuplicate;
  subscribe(channel: string): Promise<unknown>;
  on(event: string, listener: (channel: unknown, message: never) => void): unknown;
  disconnect(): void;
}

/** Delay before a new attempt: a busy Redis, or an ACL, may reject a subscription. */
const RESUBSCRIBE_MS: Millis = 1000;

function ioRedisSubscriber(client: IoRedisDuplicate): Subscriber {
  let duplicate: IoRedisDuplicate | undefined;
  let cancelRetry = (): void => {};
  // This connection always queues commands while disconnected. It does not resubscribe by itself: if that fails,
  // ioredis leaves the rejection unhandled, which ends the process.
  const overrides = {
    enableOfflineQueue: true,
    maxRetriesPerRequest: null,
    autoResubscribe: false,
  };
  const listen = async (
    channel: string,
    event: 'message' | 'messageBuffer',
    onMessage: (message: never) => void,
  ): Promise<void> => {
    const copy = client.isCluster ? client.duplicate([], overrides) : client.duplicate(overrides);
    duplicate = copy;
    copy.on('error', () => {}); // polling compensates for lost messages
    copy.on(event, (_channel, message) => onMessage(message));
    await copy.subscribe(channel).catch((error: unknown) => {
      copy.disconnect();
      throw error;
    });
    const resubscribe = (): void => {
      cancelRetry();
      const at = systemClock.now() + RESUBSCRIBE_MS;
      copy.subscribe(channel).catch(() => {
        const isConnected = copy.status === 'ready'; // otherwise the next connection subscribes
        if (isConnected) cancelRetry = schedule(systemClock, at, resubscribe, false);
      });
    };
    copy.on('ready', resubscribe);
  };
  return {
    subscribe: (channel, onMessage) => listen(channel, 'message', onMessage),
    subscribeBytes: (channel, onMessage) => listen(channel, 'messageBuffer', onMessage),
    async stop() {
      duplicate?.disconnect();
      cancelRetry();
    },
  };
}

interface NodeRedisDuplicate extends ConnectableClient {
  duplicate(): NodeRedisDuplicate;
  subscribe(
    channel: string,
    onMessage: (message: never) => void,
    areBytes?: boolean,
  ): Promise<unknown>;
}

function nodeRedisSubscriber(client: NodeRedisDuplicate): Subscriber {
  let destroy = (): void => {};
  const listen = async (
    channel: string,
    onMessage: (message: never) => void,
    areBytes: boolean,
  ): Promise<void> => {
    const copy = client.duplicate();
    const connection = connectClient(copy); // ignores errors: polling compensates for lost messages
    destroy = connection.destroy;
    try {
      await connection.opened;
      await copy.subscribe(channel, onMessage, areBytes);
    } catch (error) {
      connection.destroy();
      throw error;
    }
  };
  return {
    subscribe: (channel, onMessage) => listen(channel, onMessage, false),
    subscribeBytes: (channel, onMessage) => listen(channel, onMessage, true),
    stop: async () => destroy(),
  };
}
