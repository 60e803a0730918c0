/**
 * The flow that a waiting call belongs to. A queue of order `fair` divides a limit between tenants, and what a tenant gets
 * between its flows. A flow without a tenant is a tenant of its own.
 */

import { ConfigError } from './errors.ts';
import { requireNumber } from './options.ts';

/** Whose call waits, for a queue of order `fair`. Other queues ignore it. */
export interface FlowOptions {
  /** The flow, such as a user or a client: all its calls have one fair share. Default: one flow for all calls without. */
  readonly flow?: string;
  /** The weight of the flow: 2 gets twice as much as 1. Default 1; from 0.01 to 1,000. */
  readonly flowWeight?: number;
  /** The tenant of the flow. Flows of one tenant divide the fair share of the tenant. Default: none. */
  readonly tenant?: string;
  /** The weight of the tenant. Default 1; from 0.01 to 1,000. */
  readonly tenantWeight?: number;
}

/** The same, read. The names of tenants and of flows without one cannot collide. */
export interface Flow {
  readonly tenant: string;
  readonly tenantWeight: number;
  readonly flow: string;
  readonly flowWeight: number;
}

export const FLOW_FIELDS = ['flow', 'flowWeight', 'tenant', 'tenantWeight'] as const;

/** The longest name of a flow or a tenant, in characters. */
export const MAX_FLOW_CHARS = 256;

export const WEIGHT_RANGE = { min: 0.01, max: 1000 } as const;

/** The flow of calls that name none. */
export const DEFAULT_FLOW: Flow = { tenant: 'f', tenantWeight: 1, flow: '', flowWeight: 1 };

/** Undefined if none is named. @throws {ConfigError} for invalid names or weights. */
export function readFlow(options: FlowOptions): Flow | undefined {
  const { flow, flowWeight, tenant, tenantWeight } = options;
  if (flow === undefined && tenant === undefined) {
    if (flowWeight !== undefined) throw new ConfigError('flow', 'given with `flowWeight`', flow);
    if (tenantWeight === undefined) return undefined;
    throw new ConfigError('tenant', 'given with `tenantWeight`', tenant);
  }
  requireName('flow', flow);
  requireName('tenant', tenant);
  if (flowWeight !== undefined) requireNumber('flowWeight', flowWeight, WEIGHT_RANGE);
  if (tenantWeight !== undefined) requireNumber('tenantWeight', tenantWeight, WEIGHT_RANGE);
  if (tenant === undefined) {
    if (tenantWeight === undefined)
      return { tenant: `f${flow}`, tenantWeight: flowWeight ?? 1, flow: '', flowWeight: 1 };
    throw new ConfigError('tenant', 'given with `tenantWeight`', tenant);
  }
  const weights = { tenantWeight: tenantWeight ?? 1, flowWeight: flowWeight ?? 1 };
  return { tenant: `t${tenant}`, flow: flow ?? '', ...weights };
}

function requireName(field: string, value: unknown): void {
  if (value === undefined) return;
  if (typeof value !== 'string' || value.length > MAX_FLOW_CHARS)
    throw new ConfigError(field, `a string of at most ${MAX_FLOW_CHARS} characters`, value);
}
