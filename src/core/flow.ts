/** A queue of order `fair` divides a limit between tenants, and the share of a tenant between its flows. */

import { ConfigError } from './errors.ts';

/** The flow and the tenant of a waiting call, for a queue of order `fair`. Other queues ignore them. */
export interface FlowOptions {
  /** The flow, such as a user or a client: all its calls have one fair share. Default: one flow for all calls without. */
  readonly flow?: string | undefined;
  /** The weight of the flow: 2 gets twice as much as 1. Default 1; from 0.01 to 1,000. */
  readonly flowWeight?: number | undefined;
  /** The tenant of the flow. Flows of one tenant divide the fair share of the tenant. Default: none. */
  readonly tenant?: string | undefined;
  /** The weight of the tenant. Default 1; from 0.01 to 1,000. */
  readonly tenantWeight?: number | undefined;
}

/** A flow that was read from the options. The names of tenants and of flows without one cannot collide. */
export interface Flow {
  readonly tenant: string;
  readonly tenantWeight: number;
  readonly flow: string;
  readonly flowWeight: number;
}

export const FLOW_FIELDS = ['flow', 'flowWeight', 'tenant', 'tenantWeight'] as const;

/** The longest name of a flow or a tenant, in characters. */
export const MAX_FLOW_CHARS = 256;

const [MIN_WEIGHT, MAX_WEIGHT] = [0.01, 1000];

const EXPECTED_NAME = `a string of at most ${MAX_FLOW_CHARS} characters`;
const EXPECTED_WEIGHT = `a number from ${MIN_WEIGHT} to ${MAX_WEIGHT}`;

/** The flow of calls that name none. */
export const DEFAULT_FLOW: Flow = { tenant: 'f', tenantWeight: 1, flow: '', flowWeight: 1 };

/** Undefined if none is named. @throws {ConfigError} for invalid names or weights. */
export function readFlow(options: FlowOptions): Flow | undefined {
  const { flow, flowWeight = 1, tenant, tenantWeight = 1 } = options;
  const problem = flowProblem(options);
  if (problem) throw new ConfigError(...problem);
  if (tenant !== undefined)
    return { tenant: `t${tenant}`, tenantWeight, flow: flow ?? '', flowWeight };
  if (flow === undefined) return undefined;
  return { tenant: `f${flow}`, tenantWeight: flowWeight, flow: '', flowWeight: 1 };
}

/** The first mistake in the options: the field, what was expected, what came. */
export function flowProblem(
  options: FlowOptions,
): readonly [field: string, expected: string, got: unknown] | undefined {
  const { flow, flowWeight, tenant, tenantWeight } = options;
  if (!isName(flow)) return ['flow', EXPECTED_NAME, flow];
  if (!isName(tenant)) return ['tenant', EXPECTED_NAME, tenant];
  if (!isWeight(flowWeight)) return ['flowWeight', EXPECTED_WEIGHT, flowWeight];
  if (!isWeight(tenantWeight)) return ['tenantWeight', EXPECTED_WEIGHT, tenantWeight];
  if (flowWeight !== undefined && flow === undefined)
    return ['flow', 'given with `flowWeight`', flow];
  if (tenantWeight !== undefined && tenant === undefined)
    return ['tenant', 'given with `tenantWeight`', tenant];
  return undefined;
}

const isName = (value: unknown): boolean =>
  value === undefined || (typeof value === 'string' && value.length <= MAX_FLOW_CHARS);

const isWeight = (value: unknown): boolean =>
  value === undefined || (typeof value === 'number' && value >= MIN_WEIGHT && value <= MAX_WEIGHT);
