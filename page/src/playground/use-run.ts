/** Runs the simulation of the current settings in slices, so that the page stays responsive, and keeps the last result. */

import { useEffect, useState } from 'preact/hooks';
import type { Settings } from '../../../src/simulator/playground/fields.ts';
import {
  type PlaygroundResult,
  simulatePlayground,
} from '../../../src/simulator/playground/run.ts';

/** The page draws and handles input at least so often. */
const SLICE_MS = 12;

/** A slider that is dragged changes many times: the run starts when it rests this long. */
const REST_MS = 60;

export interface RunState {
  readonly result?: PlaygroundResult;
  /** The settings of the result. */
  readonly settings?: Settings;
  /** The part of the next result that is done, 0 to 1. */
  readonly progress?: number;
  readonly problem?: string;
}

const nextTask = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

export function useRun(settings: Settings): RunState {
  const [state, setState] = useState<RunState>({});
  useEffect(() => {
    let isOver = false;
    const run = async (): Promise<void> => {
      try {
        const steps = simulatePlayground(settings);
        let sliceEndsAt = performance.now() + SLICE_MS;
        for (;;) {
          const { done, value } = await steps.next();
          if (isOver) return;
          if (done) return setState({ result: value, settings });
          if (performance.now() < sliceEndsAt) continue;
          setState(({ problem: _, ...before }) => ({ ...before, progress: value }));
          await nextTask();
          sliceEndsAt = performance.now() + SLICE_MS;
        }
      } catch (error) {
        const problem = error instanceof Error ? error.message : String(error);
        if (!isOver) setState(({ progress: _, ...before }) => ({ ...before, problem }));
      }
    };
    const timer = setTimeout(run, REST_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [settings]);
  return state;
}
