/**
 * The user's own connection, whichever client made it.
 *
 * node-redis and ioredis differ in how a command is spelled and in how a cluster finds its node;
 * this is all that is needed of either. No connection is ever opened here.
 */

import { ConfigError } from '../../core/errors.ts';
import type { ReplyValue } from './reply.ts';

export type ScriptReply = readonly ReplyValue[];

/** A connection that can run a script and read bytes. */
export interface RedisConnection {
  /** True if keys live on several nodes: a call may then only touch keys of one slot. */
  readonly isCluster: boolean;
  /** Runs a script with these keys and arguments; its text travels only when it has to. */
  run(script: string, keys: readonly string[], args: readonly string[]): Promise<ScriptReply>;
}

/** A connection of its own that hears messages: while it listens, a connection can do nothing else. */
export interface Subscriber {
  subscribe(channel: string, hear: (message: string) => void): Promise<void>;
  /** The same for messages that are no text. */
  subscribeBytes(channel: string, hear: (message: Uint8Array) => void): Promise<void>;
  stop(): Promise<void>;
}

/** What is used of node-redis: `createClient()`, `createCluster()` and their kin. */
export interface NodeRedisLike {
  sendCommand(...args: never[]): Promise<unknown>;
  evalSha(...args: never[]): Promise<unknown>;
  withCommandOptions?(options: object): unknown;
}

/** What is used of ioredis: `new Redis()` and `new Redis.Cluster()`. */
export interface IoRedisLike {
  readonly isCluster?: boolean;
  script(...args: never[]): Promise<unknown>;
  evalsha(...args: never[]): Promise<unknown>;
  eval(...args: never[]): Promise<unknown>;
}

/** A client of node-redis or ioredis, of one server or a cluster. */
export type RedisClient = NodeRedisLike | IoRedisLike;

/** Redis does not know the script: it was restarted, flushed, or another node took over. */
const isNoScriptError = (error: unknown): boolean =>
  error instanceof Error && error.message.startsWith('NOSCRIPT');

/** A client can be told to hand out bytes for text. The first answer is always text. */
function normalizeReply(reply: unknown): ScriptReply {
  const answers = reply as ScriptReply;
  if (typeof answers[0] === 'string') return answers;
  return answers.map((told) => (typeof told === 'number' ? told : String(told)));
}

interface ClientAdapter {
  readonly isCluster: boolean;
  /** Teaches a script, and gives the digest it goes by. */
  load(script: string): Promise<string>;
  run(
    how: 'EVALSHA' | 'EVAL',
    what: string,
    keys: readonly string[],
    args: readonly string[],
  ): Promise<unknown>;
}

export function connectionOf(client: unknown): RedisConnection {
  const adapter = adapterOf(client);
  const digests = new Map<string, string>();
  const digestOf = async (script: string): Promise<string> => {
    const digest = await adapter.load(script);
    digests.set(script, digest);
    return digest;
  };
  return {
    isCluster: adapter.isCluster,
    async run(script, keys, args) {
      const digest = digests.get(script) ?? (await digestOf(script));
      try {
        return normalizeReply(await adapter.run('EVALSHA', digest, keys, args));
      } catch (error) {
        if (!isNoScriptError(error)) throw error;
        return normalizeReply(await adapter.run('EVAL', script, keys, args));
      }
    },
  };
}

function adapterOf(client: unknown): ClientAdapter {
  if (typeof client === 'object' && client !== null) {
    const own = client as Record<string, unknown>;
    if (typeof own.evalsha === 'function') return ioRedisAdapter(client as IoRedisCommands);
    if (typeof own.evalSha === 'function') return nodeRedisAdapter(client as NodeRedisCommands);
  }
  throw new ConfigError('client', 'a client of node-redis or ioredis', client);
}

interface IoRedisCommands {
  readonly isCluster?: boolean;
  script(what: 'LOAD', script: string): Promise<unknown>;
  evalsha(digest: string, keys: number, ...rest: string[]): Promise<unknown>;
  eval(script: string, keys: number, ...rest: string[]): Promise<unknown>;
}

const ioRedisAdapter = (client: IoRedisCommands): ClientAdapter => ({
  isCluster: client.isCluster === true,
  load: async (script) => String(await client.script('LOAD', script)),
  run: (how, what, keys, args) =>
    how === 'EVALSHA'
      ? client.evalsha(what, keys.length, ...keys, ...args)
      : client.eval(what, keys.length, ...keys, ...args),
});

interface NodeRedisCommands {
  /** Only a cluster has these. */
  readonly slots?: unknown;
  readonly masters?: unknown;
  sendCommand(...args: unknown[]): Promise<unknown>;
  withCommandOptions?(options: object): NodeRedisCommands;
}

function nodeRedisAdapter(client: NodeRedisCommands): ClientAdapter {
  const isCluster = client.slots !== undefined && client.masters !== undefined;
  // A deadline of our own is kept already; theirs makes an AbortSignal for every command.
  const plain = isCluster
    ? client
    : (client.withCommandOptions?.({ timeout: undefined }) ?? client);
  const send = (key: string | undefined, command: readonly string[]): Promise<unknown> =>
    isCluster ? plain.sendCommand(key, false, command) : plain.sendCommand(command);
  return {
    isCluster,
    load: async (script) => String(await send(undefined, ['SCRIPT', 'LOAD', script])),
    run: (how, what, keys, args) =>
      send(keys[0], [how, what, String(keys.length), ...keys, ...args]),
  };
}

/** A second connection like the user's. Only for those who asked for it. */
export function createSubscriber(client: unknown): Subscriber {
  const own = client as { evalsha?: unknown };
  return typeof own.evalsha === 'function'
    ? ioRedisSubscriber(client as IoRedisDuplicate)
    : nodeRedisSubscriber(client as NodeRedisDuplicate);
}

interface IoRedisDuplicate {
  readonly isCluster?: boolean;
  /** Other options; those of a cluster come after other nodes. */
  duplicate(...others: object[]): IoRedisDuplicate;
  subscribe(channel: string): Promise<unknown>;
  on(event: string, act: (channel: unknown, message: never) => void): unknown;
  disconnect(): void;
}

function ioRedisSubscriber(client: IoRedisDuplicate): Subscriber {
  let duplicate: IoRedisDuplicate | undefined;
  // Whatever the user's own does without a connection: this one waits for it, and listens as soon as it can.
  const patient = { enableOfflineQueue: true, maxRetriesPerRequest: null, autoResubscribe: true };
  const listen = async (
    channel: string,
    event: 'message' | 'messageBuffer',
    hear: (message: never) => void,
  ): Promise<void> => {
    const own = client.isCluster ? client.duplicate([], patient) : client.duplicate(patient);
    duplicate = own;
    own.on('error', () => {}); // what is lost is made up for by asking
    own.on(event, (_channel, message) => hear(message));
    await own.subscribe(channel).catch((error: unknown) => {
      own.disconnect();
      throw error;
    });
  };
  return {
    subscribe: (channel, hear) => listen(channel, 'message', hear),
    subscribeBytes: (channel, hear) => listen(channel, 'messageBuffer', hear),
    stop: async () => duplicate?.disconnect(),
  };
}

interface NodeRedisDuplicate {
  duplicate(): NodeRedisDuplicate;
  connect(): Promise<unknown>;
  subscribe(channel: string, hear: (message: never) => void, areBytes?: boolean): Promise<unknown>;
  readonly isOpen?: boolean;
  on(event: string, act: () => void): unknown;
  destroy(): void;
}

function nodeRedisSubscriber(client: NodeRedisDuplicate): Subscriber {
  let duplicate: NodeRedisDuplicate | undefined;
  const end = (own: NodeRedisDuplicate): void => {
    if (own.isOpen !== false) own.destroy(); // one that never was open may mind
  };
  const listen = async (
    channel: string,
    hear: (message: never) => void,
    areBytes: boolean,
  ): Promise<void> => {
    const own = client.duplicate();
    duplicate = own;
    own.on('error', () => {}); // what is lost is made up for by asking
    try {
      await own.connect();
      await own.subscribe(channel, hear, areBytes);
    } catch (error) {
      end(own);
      throw error;
    }
  };
  return {
    subscribe: (channel, hear) => listen(channel, hear, false),
    subscribeBytes: (channel, hear) => listen(channel, hear, true),
    stop: async () => duplicate && end(duplicate),
  };
}
