/** Callers of several flows that acquire in a loop, and how evenly they were served. */

import type { FlowOptions } from '../../src/core/flow.ts';

export interface FlowLoad {
  readonly flow: string;
  readonly tenant?: string;
  /** Of the tenant, if there is one, else of the flow. */
  readonly weight: number;
  readonly callers: number;
  readonly cost?: number;
}

type Acquire = (options: FlowOptions, cost: number) => Promise<{ readonly verdict: string }>;

/** The calls that each flow got while `pass` ran, by `flow` or `tenant/flow`. */
export async function runFlows(
  acquire: Acquire,
  flows: readonly FlowLoad[],
  pass: () => Promise<unknown>,
): Promise<Map<string, number>> {
  const served = new Map<string, number>();
  let isOver = false;
  for (const { flow, tenant, weight, callers, cost = 1 } of flows) {
    const name = tenant === undefined ? flow : `${tenant}/${flow}`;
    const options =
      tenant === undefined ? { flow, flowWeight: weight } : { flow, tenant, tenantWeight: weight };
    served.set(name, 0);
    const loop = async (): Promise<void> => {
      while (!isOver) {
        const { verdict } = await acquire(options, cost);
        if (verdict !== 'allow') return;
        if (!isOver) served.set(name, (served.get(name) ?? 0) + 1);
      }
    };
    for (let n = 0; n < callers; n++) void loop();
  }
  await pass();
  isOver = true;
  return served;
}

/** Jain's index: 1 if all get the same, 1 / n if one gets everything. */
export function fairnessOf(values: Iterable<number>): number {
  const all = [...values];
  const total = all.reduce((a, b) => a + b, 0);
  return total ** 2 / (all.length * all.reduce((a, b) => a + b * b, 0));
}
