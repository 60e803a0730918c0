import { figuresOf, type ScenarioFigures, type Selection } from './figures.ts';
import type { ScenarioRun } from './run.ts';
import type { Expectation } from './scenario.ts';

export interface CheckedExpectation {
  readonly expectation: Expectation;
  readonly value: number;
  readonly isMet: boolean;
}

/** Every expectation, met or not, in the order of the file. */
export function checkExpectations(run: ScenarioRun): CheckedExpectation[] {
  const known = new Map<string, ScenarioFigures>();
  const figures = (selection: Selection): ScenarioFigures => {
    const { of, fromMs, toMs } = selection;
    const name = JSON.stringify([of, fromMs, toMs]);
    const found = known.get(name) ?? figuresOf(run, selection);
    known.set(name, found);
    return found;
  };
  return run.scenario.expect.map((expectation) => {
    const { figure, min, max } = expectation;
    const value = figures(expectation)[figure];
    return { expectation, value, isMet: value >= min && value <= max };
  });
}
