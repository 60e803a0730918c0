export function attack(options: { readonly rounds: number; readonly seed: number }): Promise<{
  readonly commands: number;
  readonly rejected: number;
  readonly fresh: number;
  readonly freshDenied: number;
  readonly restarts: number;
}>;
