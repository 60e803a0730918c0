export type MetricLabels = Readonly<Record<string, string>>;

export type MetricSample = readonly [labels: MetricLabels, value: number];

export interface MetricFamily {
  /** In full, such as `sluice_permits` or `sluice_reloads_total`. */
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly help: string;
  readonly samples: readonly MetricSample[];
}

type FamilyBuilder = (
  name: string,
  help: string,
  samples: number | readonly MetricSample[],
) => MetricFamily;

/** A family of this kind; a number stands for one sample without labels. */
const familyOf =
  (kind: MetricFamily['kind']): FamilyBuilder =>
  (name, help, samples) => ({
    name,
    kind,
    help,
    samples: typeof samples === 'number' ? [[{}, samples]] : samples,
  });

export const counter = familyOf('counter');
export const gauge = familyOf('gauge');
