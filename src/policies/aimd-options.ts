import type { OptionReader } from '../core/options.ts';

const VARIANTS = ['vector', 'rfc'] as const;

/** The options of the rule. */
export interface AimdOptions {
  /** Calls allowed in flight at the start. Default 1. */
  readonly initial?: number | undefined;
  /** Upper bound of the limit. Default 200. */
  readonly max?: number | undefined;
  /** What a decrease leaves of the limit. Nearer to 1 is gentler. Default 0.9. */
  readonly decreaseRatio?: number | undefined;
  /** Weight of the newest window in the moving mean (EWMA). Larger follows faster. Default 0.4. */
  readonly alpha?: number | undefined;
  /** How many deviations above the mean count as slower. Larger tolerates more. Default 2.5. */
  readonly deviationScale?: number | undefined;
  /** Double instead of adding one, until the first decrease. Default false. */
  readonly slowStart?: boolean | undefined;
  /** Delay each adjustment by up to this part of the mean RTT, so that clients do not adjust in step. Default 0. */
  readonly jitter?: number | undefined;
  /** Decrease while calls are in flight and none is answered, before they time out. Default true. */
  readonly decreaseOnSilence?: boolean | undefined;
  /** Vector's code, or its RFC: judges every call, halves the limit, and lowers one that is not in use. Default vector. */
  readonly variant?: (typeof VARIANTS)[number] | undefined;
}

/** Options after their defaults are filled in. */
type WithDefaults<Options> = { readonly [name in keyof Options]-?: NonNullable<Options[name]> };

/** The numbers of the control loop. */
export interface AimdTerms extends WithDefaults<AimdOptions> {
  readonly kind: string;
  /** False: measures, but never moves the limit. */
  readonly adjusts: boolean;
}

const DEFAULT_MAX = 200;

/** The RFC halves, and adds one. */
const VECTOR_ONLY = ['decreaseRatio', 'slowStart'];

/** Reads the options of the rule, and no others. */
export function readAimd(reader: OptionReader): AimdTerms {
  const max = reader.integer('max', 1, DEFAULT_MAX);
  const initial = reader.integer('initial', 1, 1);
  if (initial > max)
    reader.report('initial', `at most \`max\` (initial ${initial} exceeds max ${max})`);
  const terms = {
    max,
    initial,
    decreaseRatio: reader.number('decreaseRatio', { above: 0, max: 0.999_999 }, 0.9),
    alpha: reader.number('alpha', { above: 0, max: 1 }, 0.4),
    deviationScale: reader.number('deviationScale', { min: 0 }, 2.5),
    slowStart: reader.boolean('slowStart', false),
    jitter: reader.number('jitter', { min: 0, max: 1 }, 0),
    decreaseOnSilence: reader.boolean('decreaseOnSilence', true),
    variant: reader.oneOf('variant', VARIANTS, 'vector'),
    kind: 'adaptive',
    adjusts: true,
  };
  for (const name of terms.variant === 'rfc' ? VECTOR_ONLY : [])
    if (reader.has(name)) reader.report(name, "left out beside `variant: 'rfc'`");
  return terms;
}
