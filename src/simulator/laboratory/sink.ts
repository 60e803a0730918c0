import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { Server, Simulation } from './servers.ts';
import type { ServiceTime } from './service-times.ts';

export const SINK_CLASSES = ['steady', 'changing', 'refusing', 'shared', 'other'] as const;
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
  /** When the nth client starts. Default: at once. */
  readonly joinsAtMs?: (client: number) => Millis;
  /** How far the clock of the nth client is ahead. Default: not at all. */
  readonly clockAheadMs?: (client: number) => Millis;
  /** Calls arrive at a client. Default: a backlog that never ends. */
  readonly arrivals?: Arrivals;
  /** Calls that wait at a client; further arrivals are lost. */
  readonly maxBacklog?: number;
  /** A call without a reply ends after this time. Default: never. */
  readonly timeoutMs?: Millis;
  /** Calls sent in this time are counted: the server refuses or loses all of them. */
  readonly refusingSpell?: Spell;
  /** Changes after which the settling time is measured. */
  readonly changes?: readonly ServerChange[];
}

export const durationOf = ({ durationMs = 60_000 }: Sink): Millis => durationMs;
export const measureFromOf = ({ measureFromMs = 15_000 }: Sink): Millis => measureFromMs;
export const clientsOf = ({ clients = 1 }: Sink): number => clients;
