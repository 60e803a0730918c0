export function attack(options: { readonly rounds: number; readonly seed: number }): Promise<{
  readonly holds: number;
  readonly full: number;
  readonly inFlight: number;
  readonly settled: number;
  readonly memoryMB: number;
}>;
