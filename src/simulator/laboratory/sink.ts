import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { CreateRule } from './rule.ts';
import type { Server, Simulation } from './servers.ts';
import type { ServiceTime } from './service-times.ts';

export const SINK_CLASSES = [
  'steady',
  'changing',
  'refusing',
  'lossy',
  'hung',
  'shared',
  'other',
] as const;
export type SinkClass = (typeof SINK_CLASSES)[number];

export type CreateServer = (simulation: Simulation) => Server;

/** The next arrivals: so many calls after so long. */
export type Arrivals = (random: Random, now: Millis) => { waitMs: Millis; count: number };

/** From one time to another. */
export interface Spell {
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

/** The server changes at `atMs`. `becomes` is a sink that is always as this one is from then on. */
export interface ServerChange {
  readonly atMs: Millis;
  readonly becomes: Sink;
}

/** One of several clients of a sink. */
export interface ClientTerms {
  /** Default: at the beginning. */
  readonly joinsAtMs?: Millis;
  /** From then on it makes no call. Default: never. */
  readonly leavesAtMs?: Millis;
  /** Default: that of the sink. */
  readonly roundTrip?: ServiceTime;
  readonly arrivals?: Arrivals | undefined;
  /** It follows this rule instead of the one that is measured, and is not measured. */
  readonly neighbour?: CreateRule;
}

export interface Sink {
  readonly name: string;
  readonly kind: SinkClass;
  readonly description: string;
  readonly server: CreateServer;
  /** Round trip of the network before the server. Default 1 ms. */
  readonly roundTrip?: ServiceTime;
  /** Length of a run. Default 60 s. */
  readonly durationMs?: Millis;
  /** Figures count from here on. Default 15 s. */
  readonly measureFromMs?: Millis;
  /** Default 1. */
  readonly clients?: number;
  /** What is special of the nth client. */
  readonly client?: (client: number) => ClientTerms;
  /** Calls arrive at a client. Default: a backlog that never ends. */
  readonly arrivals?: Arrivals;
  /** Calls that wait at a client; further arrivals are lost. */
  readonly maxBacklog?: number;
  /** A call without a reply ends after this time. Default: never. */
  readonly timeoutMs?: Millis;
  /** The server refuses, loses or holds all calls in this time: calls sent and most in flight are measured. */
  readonly spell?: Spell;
  /** Changes after which the settling time is measured. */
  readonly changes?: readonly ServerChange[];
}

export const durationOf = ({ durationMs = 60_000 }: Sink): Millis => durationMs;
export const measureFromOf = ({ measureFromMs = 15_000 }: Sink): Millis => measureFromMs;
export const clientsOf = ({ clients = 1 }: Sink): number => clients;
export const termsOf = ({ client }: Sink, number: number): ClientTerms => client?.(number) ?? {};
/** Divides the server with others for the whole time that is measured, and always has calls to make. */
export const isComparable = (sink: Sink, number: number): boolean => {
  const { arrivals = sink.arrivals, leavesAtMs, neighbour } = termsOf(sink, number);
  return arrivals === undefined && leavesAtMs === undefined && neighbour === undefined;
};
